#include "exported/pytree.h"

#include <optional>
#include <set>

#include "exported/json.h"
#include "tutti/core/error.h"

namespace tutti::exported {
namespace {

using Form = Tree::Kind;

std::optional<std::vector<Tree::Key>> keys_of(const Json& list, std::size_t count) {
  if (!list.is_array() || list.size() != count) return std::nullopt;
  std::vector<Tree::Key> keys;
  std::set<Tree::Key> seen;
  for (const Json& key : list) {
    if (key.is_string()) {
      keys.emplace_back(text_of(key));
    } else if (key.is_number_integer()) {
      keys.emplace_back(integer_of(key));
    } else {
      return std::nullopt;
    }
    if (!seen.insert(keys.back()).second) return std::nullopt;
  }
  return keys;
}

// Returns the context of a node, which some types store as JSON in a string.
Json context_of(const Json& json) {
  const Json& context = field_of(json, "context");
  return context.is_string() ? parse_json(text_of(context), "a description of inputs or outputs") : context;
}

void read_keys(Tree& tree, const std::string& type, const Json& json) {
  Json context = context_of(json);
  if (type == "collections.defaultdict") context = field_of(context, "dict_context");
  // A dataclass has two lists: its fields, and the fields that are None.
  const bool is_dataclass = context.is_array() && context.size() == 2 && context[0].is_array() && context[1].is_array();
  auto keys = keys_of(is_dataclass ? context[0] : context, tree.children.size());
  const bool is_dict =
      type == "builtins.dict" || type == "collections.OrderedDict" || type == "collections.defaultdict";
  if (is_dict && !keys)
    throw CheckpointError("a dict of the inputs or outputs has keys that are not strings or integers");
  tree.kind = keys && !tree.children.empty() ? Form::dict : Form::tuple;
  if (is_dict) tree.kind = Form::dict;
  if (keys) tree.keys = std::move(*keys);
}

Tree tree_of(const Json& json) {
  Tree tree;
  for (const Json& child : list_of(field_of(json, "children_spec"))) tree.children.push_back(tree_of(child));
  const Json& type = field_of(json, "type");
  if (type.is_null()) {
    if (!tree.children.empty()) throw CheckpointError("a leaf of the inputs or outputs has children");
    return tree;
  }
  const std::string& name = text_of(type);
  if (name == "builtins.tuple" || name == "collections.namedtuple") {
    tree.kind = Form::tuple;
  } else if (name == "builtins.list" || name == "collections.deque") {
    tree.kind = Form::list;
  } else {
    read_keys(tree, name, json);
  }
  return tree;
}

}  // namespace

Tree Tree::parse(const std::string& json) {
  const Json root = parse_json(json, "the description of inputs or outputs");
  constexpr std::int64_t known_protocol = 1;
  if (list_of(root).size() != 2 || integer_of(root[0]) != known_protocol) {
    throw CheckpointError("the description of inputs or outputs has an unknown version");
  }
  return tree_of(root[1]);
}

std::size_t Tree::leaves() const {
  if (kind == Form::leaf) return 1;
  std::size_t count = 0;
  for (const Tree& child : children) count += child.leaves();
  return count;
}

std::string shown_key(const Tree::Key& key) {
  if (const auto* number = std::get_if<std::int64_t>(&key)) return std::to_string(*number);
  return "'" + std::get<std::string>(key) + "'";
}

void name_leaves(const Tree& tree, const std::string& name, std::vector<std::string>& names) {
  if (tree.kind == Form::leaf) names.push_back(name);
  for (std::size_t i = 0; i < tree.children.size(); ++i) {
    const std::string key = tree.kind == Form::dict ? shown_key(tree.keys[i]) : std::to_string(i);
    name_leaves(tree.children[i], name + "[" + key + "]", names);
  }
}

}  // namespace tutti::exported
