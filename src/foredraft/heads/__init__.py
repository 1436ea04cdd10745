"""Small networks that draft from the target's hidden states: EAGLE and Medusa heads, and the files they come in."""
