"""Scripted experts: pure functions from DOM facts and an instruction to the next action. Never shown to the agent."""
