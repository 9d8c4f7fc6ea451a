"""What goes when something is made smaller, and which words stand in its place."""
