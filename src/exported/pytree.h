#pragma once
// The shape of a model's inputs and outputs: nested tuples, lists and dicts, as torch.utils._pytree writes it down.
// Pure.
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace tutti::exported {

struct Tree {
  enum class Kind { leaf, tuple, list, dict };
  using Key = std::variant<std::string, std::int64_t>;

  Kind kind = Kind::leaf;
  std::vector<Key> keys{};  ///< of a dict, in the order of its children
  std::vector<Tree> children{};

  /// Throws CheckpointError. Classes that are registered in Python become dicts of their fields, or tuples.
  static Tree parse(const std::string& json);
  std::size_t leaves() const;
};

/// "'x'" or "3".
std::string shown_key(const Tree::Key& key);

/// Python's name of each leaf below `name`: "batch['x'][0]".
void name_leaves(const Tree& tree, const std::string& name, std::vector<std::string>& names);

}  // namespace tutti::exported
