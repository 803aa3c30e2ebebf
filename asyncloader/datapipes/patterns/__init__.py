"""How a pipe reads its source, and the kinds of passes that several families are built of."""
