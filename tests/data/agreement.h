#pragma once
// The agreement of loaders in tests, over a communicator.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <memory>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/data/data_loader.h"

namespace tutti::test {

inline LoaderAgreement agreement_over(const Communicator& communicator) {
  return [communicator](const std::vector<std::int64_t>& mine) {
    const auto count = static_cast<std::int64_t>(mine.size());
    const at::Tensor all = at::empty({communicator.size(), count}, at::kLong);
    auto work = std::make_shared<Work>(communicator.all_gather(all, at::tensor(mine)));
    return [all, work, count] {
      work->wait();
      std::vector<std::vector<std::int64_t>> ranks;
      for (std::int64_t rank = 0; rank < all.size(0); ++rank) {
        const auto* first = all.const_data_ptr<std::int64_t>() + rank * count;
        ranks.emplace_back(first, first + count);
      }
      return ranks;
    };
  };
}

inline LoaderGroup group_of(const Communicator& communicator) {
  return {.rank = communicator.rank(), .world_size = communicator.size(), .agreement = agreement_over(communicator)};
}

}  // namespace tutti::test
