"""Exports models of other libraries and trains them in eager PyTorch, for known_models_test.cpp.

    export_known_models.py FOLDER NAME     NAME: resnet18 of torchvision, bert or gpt2 of transformers, random weights

writes NAME.pt2, and NAME.safetensors with the inputs of every step ("0.in.KEY", "1.in.KEY", ...), its loss ("0.loss") and
output ("0.out"), parameters and buffers after all steps ("end.NAME"), and the output in evaluation after them ("eval").
"""
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.export import Dim

STEPS, LEARNING_RATE, MOMENTUM = 5, 0.01, 0.9
BATCH, LENGTH = Dim("batch", min=2, max=1024), Dim("length", min=2, max=48)


def resnet18():
    from torchvision.models import resnet18 as make

    inputs = [{"x": torch.randn(3 + i, 3, 64, 64), "labels": torch.randint(10, (3 + i,))} for i in range(STEPS)]
    return make(num_classes=10), inputs, {"x": {0: BATCH}}


def bert():
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(vocab_size=200, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128,
                        max_position_embeddings=48, num_labels=2)
    inputs = []
    for i in range(STEPS):
        shape = (3 + i, 12 + 3 * i)
        attended = torch.ones(shape, dtype=torch.long)
        attended[1, 7:] = 0
        second = (torch.arange(shape[1]) > 5).long().expand(shape).contiguous()
        inputs.append({"input_ids": torch.randint(200, shape), "attention_mask": attended, "token_type_ids": second,
                       "labels": torch.randint(2, shape[:1])})
    shapes = {key: {0: BATCH, 1: LENGTH} for key in inputs[0]} | {"labels": {0: BATCH}}
    return BertForSequenceClassification(config), inputs, shapes


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=200, n_positions=48, n_embd=64, n_layer=2, n_head=2, use_cache=False,
                        bos_token_id=0, eos_token_id=0)
    inputs = []
    for i in range(STEPS):
        ids = torch.randint(200, (3 + i, 12 + 3 * i))
        attended = torch.ones_like(ids)
        attended[1, 7:] = 0
        inputs.append({"input_ids": ids, "attention_mask": attended, "labels": ids.clone()})
    return GPT2LMHeadModel(config), inputs, {key: {0: BATCH, 1: LENGTH} for key in inputs[0]}


def results(model, given):
    """Returns loss and output. Models of transformers compute the loss themselves."""
    if "x" in given:
        out = model(given["x"])
        return torch.nn.functional.cross_entropy(out, given["labels"]), out
    out = model(**given)
    return out.loss, out.logits


def main():
    torch.set_num_threads(1)
    folder, name = Path(sys.argv[1]), sys.argv[2]
    torch.manual_seed(0)
    model, inputs, shapes = globals()[name]()
    model.train()
    sample = {key: inputs[0][key] for key in shapes}
    torch.export.save(torch.export.export(model, (), sample, dynamic_shapes=shapes), folder / f"{name}.pt2")

    content = {}
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE, MOMENTUM, foreach=False)
    torch.manual_seed(1)
    for step, given in enumerate(inputs):
        content.update({f"{step}.in.{key}": tensor.clone() for key, tensor in given.items()})
        loss, out = results(model, given)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        content[f"{step}.loss"], content[f"{step}.out"] = loss.detach(), out.detach()
    content.update({f"end.{key}": tensor.detach() for key, tensor in model.named_parameters(remove_duplicate=False)})
    content.update({f"end.{key}": tensor for key, tensor in model.named_buffers()})
    model.eval()
    with torch.no_grad():
        content["eval"] = results(model, inputs[0])[1]
    save_file({key: tensor.clone().contiguous() for key, tensor in content.items()}, folder / f"{name}.safetensors")


if __name__ == "__main__":
    main()
