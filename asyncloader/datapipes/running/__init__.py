"""What pipes stand on: how they are asked, named, placed, run and watched."""
