"""The page for whoever is on call: files for a browser, who is logged in, what they see, live."""
