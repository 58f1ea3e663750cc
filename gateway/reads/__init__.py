"""What of this app's rows is read, an area a file."""
