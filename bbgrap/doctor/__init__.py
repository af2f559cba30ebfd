"""What is wrong with a machine or a cluster, and what to do about it: facts are read, and pure functions make findings of them."""
