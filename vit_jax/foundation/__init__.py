"""What all rooms use, and knows nothing of the field."""
