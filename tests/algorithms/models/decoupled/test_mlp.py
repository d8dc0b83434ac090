import torch

from shoal.algorithms.models.decoupled.fixed_hops import MLP


def test_two_layers_by_hand() -> None:
    model = MLP(2, 1, 3, 0.5, hidden=2).eval()
    assert model.inputs == (0,)
    first, last = model.head.linears
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, -1.0]]))
        first.bias.copy_(torch.tensor([1.0, 0.0]))
        last.weight.copy_(torch.tensor([[2.0, 3.0]]))
        last.bias.copy_(torch.tensor([0.5]))
    out = model([torch.tensor([[1.0, -2.0], [-3.0, 4.0]])])
    assert out.embedding_NH.tolist() == [[2.0, 2.0], [0.0, 0.0]]
    assert out.logits_NC.tolist() == [[10.5], [0.5]]
