"""What people read: terminal tables, progress, traces."""
