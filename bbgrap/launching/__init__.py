"""Clusters on other machines, started by what a site has for that: ssh, Ray, Dask."""
