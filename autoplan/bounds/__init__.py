"""What no plan of a whole set is below: step times, loads, device time."""
