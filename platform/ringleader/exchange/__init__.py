"""Exchanges, which keep members in step: ring and synchronous parameter servers behind one Protocol."""

from ringleader.exchange.coded_sums import Coding
from ringleader.exchange.exchange import Exchange
from ringleader.exchange.registry import open_exchange

__all__ = ["Coding", "Exchange", "open_exchange"]
