"""Pure decisions of pages: data in, decision out."""
