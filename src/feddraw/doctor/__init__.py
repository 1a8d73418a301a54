"""`feddraw doctor`: is this machine fit to train on, how fast is it, and what would a study cost
here.
"""
