#pragma once
// Assigns the elements of the model to fragments. No I/O.
#include <cstdint>
#include <span>
#include <vector>

namespace tutti::local_sgd {

/// Consecutive elements of one parameter.
struct Piece {
  int parameter = 0;
  std::int64_t offset = 0;  ///< first element within the parameter
  std::int64_t length = 0;
  std::int64_t begin = 0;  ///< position in the fragment's flat vector
};

struct FragmentPlan {
  std::int64_t elements = 0;
  std::vector<Piece> pieces;  ///< in order, without gaps
};

struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t length = 0;
};

/// Part `part` of `parts` equal parts of `elements`. The lengths differ by at most 1.
ElementRange part_of(std::int64_t elements, std::int64_t part, std::int64_t parts);

/// Splits the elements of parameters with `sizes` into fragments whose lengths differ by at most 1, in order. A
/// parameter may belong to several fragments. Throws UsageError if there are fewer elements than fragments.
std::vector<FragmentPlan> plan_fragments(std::span<const std::int64_t> sizes, int fragments);

/// Splits `elements` into pieces of `cap` elements; the last piece may be shorter.
std::vector<ElementRange> plan_messages(std::int64_t elements, std::int64_t cap);

}  // namespace tutti::local_sgd
