#pragma once
// The function by which loaders of different ranks exchange numbers.
#include <cstdint>
#include <functional>
#include <vector>

namespace tutti {

/// Starts an all-gather of these numbers (the same count on every rank) without blocking. The returned function blocks
/// until the numbers of all ranks have arrived, and returns them by rank. Every rank must call it, in the same order.
/// Throws as the transport does. Empty on a single rank.
using LoaderAgreement =
    std::function<std::function<std::vector<std::vector<std::int64_t>>()>(const std::vector<std::int64_t>& local)>;

}  // namespace tutti
