"""Files to train on and fine-tuning jobs, in OpenAI's words; the same bytes at both doors."""
