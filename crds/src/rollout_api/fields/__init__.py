"""What is said of single fields, whatever rule or model reads them: which are live, moved, reserved, or hold credentials."""
