"""The pullback: every operation returns its result and the function that carries the gradient back through it.

    y, backward = f(x)        # forward: compute y
    dx = backward(dy)         # backward: ∂loss/∂y, the upstream gradient, goes in, ∂loss/∂x comes out

That is the whole engine of this book. Each operation is written once, on one page, with both
passes: `backward` is a nested function, so it sees what the forward pass computed under the names
that the equations use. A bigger operation calls smaller ones and keeps their pullbacks; its own
`backward` calls these in the opposite order. That is the chain rule, read from right to left.

Take y = w·(w·x), one weight in two places:

>>> def product(a, b):
...     def backward(dy):
...         return dy * b, dy * a
...     return a * b, backward
>>> def twice(w, x):
...     inner, inner_backward = product(w, x)
...     y, outer_backward = product(w, inner)
...     def backward(dy):
...         dw_outer, d_inner = outer_backward(dy)
...         dw_inner, dx = inner_backward(d_inner)
...         return dw_outer + dw_inner, dx    # w was used twice: its two gradients add
...     return y, backward
>>> y, backward = twice(3.0, 2.0)
>>> y, backward(1.0)                          # y = w²x,  ∂y/∂w = 2wx,  ∂y/∂x = w²
(18.0, (12.0, 9.0))

Four rules hold on every page:

* dx is ∂loss/∂x: it has the shape of x, and `backward` returns the gradients of all arguments in
  the order of the arguments. A layer's own parameters count as argument 0.
* `backward` is pure: called twice it answers the same, and neither pass ever writes into an array
  that the caller can see.
* The gradient of a layer is a layer, so its parts bear the parts' names: in a layer's `backward`,
  `weight` is ∂loss/∂weight.
* What was used twice receives the sum of its gradients, in sight.
"""

import numpy as np

Array = np.ndarray
