// Describes a random program for the message of a failed test.
#include <array>
#include <sstream>

#include "sync/random_program.h"

namespace tutti::test {

namespace {

std::string name_of(SyncPolicy policy) {
  return std::array{"every pass", "manual", "automatic"}[static_cast<std::size_t>(policy)];
}

std::string name_of(Interlude interlude) {
  return std::array{"", "evaluate; ", "synchronize; ", "discard; ",
                    "save and load; "}[static_cast<std::size_t>(interlude)];
}

std::string name_of(Zeroing zeroing) {
  return std::array{"no", "to none", "in place", "behind the back to none",
                    "behind the back in place"}[static_cast<std::size_t>(zeroing)];
}

std::string name_of(Clipping clipping) {
  return std::array{"", ", halved in place", ", halved and replaced"}[static_cast<std::size_t>(clipping)];
}

void describe(std::ostream& text, const ProgramPass& pass, const ProgramScope& scope) {
  text << "pass" << (pass.no_sync ? " no_sync" : "") << (pass.trigger ? " trigger" : "")
       << (pass.two_losses ? " two losses" : "");
  if (pass.loss_scale != 1) text << " x " << pass.loss_scale;
  for (std::size_t rank = 0; rank < pass.uses.size(); ++rank) {
    text << " |";
    if (!scope.present[rank]) text << " absent";
    for (const Use& use : pass.uses[rank]) {
      text << " p" << use.parameter << (use.reach == Reach::twice ? "*2" : use.reach == Reach::nested ? "*nested" : "");
    }
  }
  text << '\n';
}

void describe(std::ostream& text, const Fault& fault) {
  const std::array places{" between passes", " before backward", " in backward"};
  text << "  fault in " << fault.scope << places[static_cast<std::size_t>(fault.where)];
  if (fault.rank) {
    text << " of rank " << *fault.rank;
  } else {
    text << " of all ranks";
  }
  text << (fault.swallowed ? ", swallowed" : "") << (fault.loses_window ? ", loses the window" : "") << '\n';
}

}  // namespace

std::string describe(const Program& program) {
  std::ostringstream text;
  text << "seed " << program.seed << ", " << program.ranks << " ranks, " << name_of(program.policy) << ", buckets of "
       << program.buckets.first_bucket_bytes << " and " << program.buckets.bucket_bytes << " bytes"
       << (program.parts ? ", parts" : "") << (program.exact ? "" : ", rounded") << '\n';
  for (std::size_t i = 0; i < program.parameters.size(); ++i) {
    const ProgramParameter& parameter = program.parameters[i];
    text << "p" << i << " " << toString(parameter.dtype) << at::IntArrayRef(parameter.shape)
         << (parameter.transposed ? " transposed" : "") << (parameter.frozen ? " frozen" : "") << ", optimizer "
         << parameter.optimizer << '\n';
  }
  for (std::size_t i = 0; i < program.windows.size(); ++i) {
    const ProgramWindow& window = program.windows[i];
    text << "window " << i << (window.weighted ? " weighted" : " plain") << (window.local ? " local" : "")
         << (window.sync_each_batch ? ", sync_each_batch" : "") << (window.step_in_scopes ? ", step in scopes" : "")
         << (window.zero_first ? ", zero_grad first" : "") << name_of(window.clipping);
    for (int o = 0; o < program.optimizers; ++o) {
      text << "; optimizer " << o << (window.steps[o] ? " steps" : " goes on")
           << ", zero_grad before: " << name_of(window.zero_before[o]) << ", after: " << name_of(window.zero_after[o]);
    }
    text << '\n';
    if (window.fault) describe(text, *window.fault);
    for (std::size_t s = 0; s < window.scopes.size(); ++s) {
      text << "  " << s << ": " << name_of(window.scopes[s].before);
      if (window.weighted) text << "weights " << at::ArrayRef<double>(window.scopes[s].weights) << " ";
      for (const ProgramPass& pass : window.scopes[s].passes) describe(text, pass, window.scopes[s]);
    }
  }
  return text.str();
}

}  // namespace tutti::test
