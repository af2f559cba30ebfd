"""Starting a cluster on other machines by the `ssh` command: `bbgrap up`."""
