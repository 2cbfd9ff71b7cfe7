"""What people and programs read: the rich table and JSON lines."""
