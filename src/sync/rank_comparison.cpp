#include "sync/rank_comparison.h"

#include <utility>

#include "core/different_line.h"
#include "sync/step_options.h"
#include "tutti/detail/comm/internal_call.h"

namespace tutti::sync {

RankComparison::RankComparison(bool enabled, std::function<BatchPosition()> batch_position)
    : enabled_(enabled), batch_position_(std::move(batch_position)) {}

void RankComparison::enable(bool enabled) {
  enabled_ = enabled;
  if (checker_) checker_->set_compares_values(enabled);
}

void RankComparison::compare(std::vector<NamedParameter> parameters) {
  checker_.reset();
  parameters_.trained = std::move(parameters);
  if (!parameters_.trained.empty()) checker_.emplace(parameters_, enabled_);
}

void RankComparison::on_step() {
  used_clippings_.swap(clippings_);
  clippings_.clear();
}

void RankComparison::fill(SyncHeader& header) {
  if (!enabled_) return;
  if (checker_) header.compared_only = checker_->combined_hash();
  header.step_options = hash_of([this](const StepOptionSink& sink) { visit_step_options(sink); });
  if (batch_position_) header.batch = batch_position_();
  header.batch.may_differ = header.batch.may_differ || batches_may_differ_;
}

std::string RankComparison::describe_difference(const SyncPlan& plan, const Communicator& communicator) const {
  if (!plan.step_options_differ) return checker_->describe_drift(communicator);
  const std::string of_rank = describe([this](const StepOptionSink& sink) { visit_step_options(sink); });
  const auto of_ranks = communicator.all_gather_object(of_rank, comm::internal_call("step options"));
  const std::string difference = first_different_line(of_ranks);
  return "ranks step differently: " + (difference.empty() ? "their options differ in the last digits" : difference) +
         ". Set the same options, schedules and clipping on all ranks";
}

void RankComparison::visit_step_options(const StepOptionSink& sink) const {
  if (step_options_) step_options_(sink);
  for (const Clipping& clipping : used_clippings_) sink(clipping.name, -1, clipping.limit);
}

}  // namespace tutti::sync
