"""What works on this machine and with this pair."""
