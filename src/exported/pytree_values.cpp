#include "exported/pytree_values.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <utility>

#include "tutti/core/error.h"

namespace tutti::exported {
namespace {

using Form = Tree::Kind;

std::string positional_name(const std::vector<std::string>& names, std::size_t i) {
  return i < names.size() ? names[i] : "argument " + std::to_string(i);
}

const std::string& named_key(const Tree& in, std::size_t i) {
  return std::get<std::string>(in.children[1].keys[i]);
}

std::string wanted_of(const Tree& tree) {
  switch (tree.kind) {
    case Form::leaf:
      return "one value";
    case Form::tuple:
      return "a tuple of " + std::to_string(tree.children.size());
    case Form::list:
      return "a list of " + std::to_string(tree.children.size());
    case Form::dict:
      break;
  }
  std::string keys;
  for (const Tree::Key& key : tree.keys) keys += (keys.empty() ? "" : ", ") + shown_key(key);
  return "a dict with " + keys;
}

[[noreturn]] void misfit(const Tree& tree, const std::string& name) {
  throw UsageError("input " + name + " is not " + wanted_of(tree) + ", as it was at export");
}

std::optional<c10::IValue> find(const c10::IValue& dict, const Tree::Key& wanted) {
  for (const auto& entry : dict.toGenericDict()) {
    const c10::IValue& key = entry.key();
    const auto* text = std::get_if<std::string>(&wanted);
    if (text != nullptr ? key.isString() && key.toStringRef() == *text
                        : key.isInt() && key.toInt() == std::get<std::int64_t>(wanted)) {
      return entry.value();
    }
  }
  return std::nullopt;
}

void flatten(const Tree& tree, const std::string& name, c10::IValue value, std::vector<c10::IValue>& leaves) {
  if (tree.kind == Form::leaf) {
    if (value.isTuple() || value.isList() || value.isGenericDict()) misfit(tree, name);
    leaves.push_back(std::move(value));
    return;
  }
  if (tree.kind == Form::dict && value.isGenericDict()) {
    if (value.toGenericDict().size() != tree.children.size()) misfit(tree, name);
    for (std::size_t i = 0; i < tree.children.size(); ++i) {
      auto child = find(value, tree.keys[i]);
      if (!child) misfit(tree, name);
      flatten(tree.children[i], name + "[" + shown_key(tree.keys[i]) + "]", std::move(*child), leaves);
    }
    return;
  }
  std::vector<c10::IValue> items;
  if (value.isTuple()) {
    for (const c10::IValue& item : value.toTupleRef().elements()) items.push_back(item);
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) items.push_back(item);
  } else {
    misfit(tree, name);
  }
  if (tree.kind == Form::dict || items.size() != tree.children.size()) misfit(tree, name);
  for (std::size_t i = 0; i < items.size(); ++i) {
    flatten(tree.children[i], name + "[" + std::to_string(i) + "]", std::move(items[i]), leaves);
  }
}

std::string all_names(const Tree& in, const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < in.children[0].children.size(); ++i) {
    text += (text.empty() ? "" : ", ") + positional_name(names, i);
  }
  for (std::size_t i = 0; i < in.children[1].children.size(); ++i)
    text += (text.empty() ? "" : ", ") + named_key(in, i);
  return text.empty() ? "no inputs" : "the inputs " + text;
}

c10::IValue build(const Tree& tree, std::vector<c10::IValue>& leaves, std::size_t& next) {
  if (tree.kind == Form::leaf) return std::move(leaves[next++]);
  std::vector<c10::IValue> children;
  for (const Tree& child : tree.children) children.push_back(build(child, leaves, next));
  if (tree.kind == Form::tuple) return c10::ivalue::Tuple::create(std::move(children));
  if (tree.kind == Form::list) {
    const bool all_tensors =
        std::all_of(children.begin(), children.end(), [](const auto& one) { return one.isTensor(); });
    c10::impl::GenericList list(all_tensors ? c10::TypePtr(c10::TensorType::get()) : c10::TypePtr(c10::AnyType::get()));
    for (c10::IValue& child : children) list.push_back(std::move(child));
    return list;
  }
  const bool all_texts = std::all_of(tree.keys.begin(), tree.keys.end(),
                                     [](const Tree::Key& key) { return std::holds_alternative<std::string>(key); });
  c10::impl::GenericDict dict(all_texts ? c10::TypePtr(c10::StringType::get()) : c10::TypePtr(c10::AnyType::get()),
                              c10::AnyType::get());
  for (std::size_t i = 0; i < children.size(); ++i) {
    c10::IValue key = std::visit([](const auto& one) { return c10::IValue(one); }, tree.keys[i]);
    dict.insert(std::move(key), std::move(children[i]));
  }
  return dict;
}

}  // namespace

std::vector<c10::IValue> flatten_inputs(const Tree& in, const std::vector<std::string>& names,
                                        std::vector<c10::IValue> positional, std::map<std::string, c10::IValue> named) {
  const Tree &first = in.children[0], &second = in.children[1];
  const auto reject_call = [&](const std::string& problem) {
    throw UsageError("forward() " + problem + ": the program was exported with " + all_names(in, names));
  };
  // As in Python, a positional argument may be passed by name, and a keyword argument by position.
  for (std::size_t i = positional.size(); i < first.children.size(); ++i) {
    const auto given = named.find(positional_name(names, i));
    if (given == named.end()) reject_call("lacks the input " + positional_name(names, i));
    positional.push_back(std::move(given->second));
    named.erase(given);
  }
  for (std::size_t i = first.children.size(); i < positional.size(); ++i) {
    if (i >= names.size() || !named.emplace(names[i], positional[i]).second) reject_call("has too many inputs");
  }
  std::vector<c10::IValue> leaves;
  for (std::size_t i = 0; i < first.children.size(); ++i) {
    flatten(first.children[i], positional_name(names, i), std::move(positional[i]), leaves);
  }
  for (std::size_t i = 0; i < second.children.size(); ++i) {
    const std::string& name = named_key(in, i);
    const auto given = named.find(name);
    if (given == named.end()) reject_call("lacks the input " + name);
    flatten(second.children[i], name, std::move(given->second), leaves);
    named.erase(given);
  }
  if (!named.empty()) reject_call("has the unknown input " + named.begin()->first);
  return leaves;
}

c10::IValue unflatten(const Tree& tree, std::vector<c10::IValue> leaves) {
  std::size_t next = 0;
  return build(tree, leaves, next);
}

std::vector<std::string> input_names(const Tree& in, const std::vector<std::string>& names) {
  std::vector<std::string> all;
  for (std::size_t i = 0; i < in.children[0].children.size(); ++i) {
    name_leaves(in.children[0].children[i], positional_name(names, i), all);
  }
  for (std::size_t i = 0; i < in.children[1].children.size(); ++i) {
    name_leaves(in.children[1].children[i], named_key(in, i), all);
  }
  return all;
}

void check_inputs(const Tree& in) {
  const bool fits = in.kind == Form::tuple && in.children.size() == 2 && in.children[0].kind == Form::tuple &&
                    in.children[1].kind == Form::dict &&
                    std::all_of(in.children[1].keys.begin(), in.children[1].keys.end(),
                                [](const Tree::Key& key) { return std::holds_alternative<std::string>(key); });
  if (!fits)
    throw CheckpointError(
        "the description of the inputs is not a tuple of positional arguments and a dict of keyword arguments");
}

}  // namespace tutti::exported
