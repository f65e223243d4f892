"""What can be done with data files: hold.verify, hold.inspect, hold.salvage, hold.merge and hold.split."""
