"""What is measured, and under which name."""
