"""SkyRL: its launches, and its trainer observed."""
