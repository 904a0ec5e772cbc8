#pragma once
// The structure of a model's inputs and outputs: nested tuples, lists and dicts, in the format of torch.utils._pytree.
// No I/O.
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace tutti::exported {

struct Tree {
  enum class Kind { leaf, tuple, list, dict };
  using Key = std::variant<std::string, std::int64_t>;

  Kind kind = Kind::leaf;
  std::vector<Key> keys{};  ///< of a dict, in the order of `children`
  std::vector<Tree> children{};

  /// A class that is registered in Python becomes a dict of its fields, or a tuple. Throws CheckpointError if the text
  /// is invalid.
  static Tree parse(const std::string& json);
  std::size_t leaves() const;
};

/// Returns the key as Python prints it: "'x'" or "3".
std::string shown_key(const Tree::Key& key);

/// Appends Python's name of each leaf to `names`: "batch['x'][0]" for `name` "batch".
void name_leaves(const Tree& tree, const std::string& name, std::vector<std::string>& names);

}  // namespace tutti::exported
