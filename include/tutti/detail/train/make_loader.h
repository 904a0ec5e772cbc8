#pragma once
// Accelerator::data_loader().
#include <concepts>
#include <optional>
#include <string>
#include <utility>

#include "tutti/detail/core/call_site_scope.h"
#include "tutti/train/accelerator.h"

namespace tutti {

template <typename Dataset>
requires(!StreamDataset<Dataset>) DataLoader<Dataset> Accelerator::data_loader(Dataset dataset,
                                                                               const DataLoaderOptions& options,
                                                                               const CallSite& where) {
  return make_loader<DataLoader<Dataset>>(std::move(dataset), options, where);
}

template <StreamDataset Dataset>
StreamLoader<Dataset> Accelerator::data_loader(Dataset dataset, const StreamLoaderOptions& options,
                                               const CallSite& where) {
  return make_loader<StreamLoader<Dataset>>(std::move(dataset), options, where);
}

template <typename Loader, typename Dataset, typename Options>
Loader Accelerator::make_loader(Dataset&& dataset, const Options& options, const CallSite& where) {
  const CallSiteScope here(where);
  const LoaderGroup group = loader_group();
  std::optional<Loader> loader;
  // An exception of one rank is reported to all ranks, so that no rank waits for it.
  check_same_loader([&] {
    loader.emplace(std::forward<Dataset>(dataset), loader_options(options), group);
    if constexpr (std::same_as<Options, DataLoaderOptions>) {
      check_whole_steps(loader->cursor()->options(), options.evaluation);
    }
    return loader->description();
  });
  register_loader(loader->cursor(), loader->description(), options.evaluation);
  return std::move(*loader);
}

}  // namespace tutti
