#pragma once
// Which elements of the model are exchanged together. No I/O: sizes in, pieces out.
#include <cstdint>
#include <span>
#include <vector>

namespace tutti::local_sgd {

/// A run of one parameter's elements.
struct Piece {
  int parameter = 0;
  std::int64_t offset = 0;  ///< first element within the parameter
  std::int64_t length = 0;
  std::int64_t begin = 0;  ///< where it stands in the fragment's flat vector
};

struct FragmentPlan {
  std::int64_t elements = 0;
  std::vector<Piece> pieces;  ///< in order, without gaps
};

struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t length = 0;
};

/// Part `part` of `parts` of `elements`: all parts together are all elements, and their lengths differ by 1 at most.
ElementRange part_of(std::int64_t elements, std::int64_t part, std::int64_t parts);

/// Splits the elements of parameters with `sizes` into fragments of equal length (but for 1), in order; a parameter may
/// lie in several. Throws UsageError for fewer elements than fragments.
std::vector<FragmentPlan> plan_fragments(std::span<const std::int64_t> sizes, int fragments);

/// Cuts `elements` into pieces of `cap` elements; the last may be shorter.
std::vector<ElementRange> plan_messages(std::int64_t elements, std::int64_t cap);

}  // namespace tutti::local_sgd
