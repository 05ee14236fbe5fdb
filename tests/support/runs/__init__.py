"""Runs that tests make: grown, forged, very long, of many ranks, in a bucket; and readings of them without ckptkit."""
