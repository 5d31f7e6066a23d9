"""What the products of both formats share: alpha and beta, how x is loaded, parts of A.T, tiles of dense columns."""
