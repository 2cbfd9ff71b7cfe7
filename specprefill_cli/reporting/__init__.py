"""Tables, passages and pages for people."""
