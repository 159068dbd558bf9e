"""The trajectory explorer: an index of all stored episodes, and a web page on loopback that shows them."""
