"""Pipes that items come from, and pipes that change, choose or name single items."""
