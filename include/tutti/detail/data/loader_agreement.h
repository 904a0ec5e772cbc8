#pragma once
// How loaders on different ranks talk to one another: by a function that they are given.
#include <cstdint>
#include <functional>
#include <vector>

namespace tutti {

/// Starts telling all ranks these numbers (as many on every rank) without blocking. What it returns blocks until those
/// of all ranks are here, and gives them by rank. Every rank calls it in the same order. Throws what the transport
/// throws. Empty where there is one rank.
using LoaderAgreement =
    std::function<std::function<std::vector<std::vector<std::int64_t>>()>(const std::vector<std::int64_t>& local)>;

}  // namespace tutti
