"""What the policy is given: scores of completions, a batch at a time.

Sources that can hang (users' functions, symbolic algebra, regular expressions) run in supervised
child processes with a deadline; pure ones that cannot run in place.
"""
