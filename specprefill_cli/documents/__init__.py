"""Turns files into documents: text, with the character range of each page."""
