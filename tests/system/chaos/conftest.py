"""The fixtures of the chaos tests."""

from support.chaos.fixtures import disturb, rays_folder

__all__ = ["disturb", "rays_folder"]
