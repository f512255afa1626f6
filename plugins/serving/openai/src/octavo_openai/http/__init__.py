"""HTTP: requests read, answers and errors sent, the log of them; never what any API says."""
