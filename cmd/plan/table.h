#pragma once
// Predicted steps, as the user of `tutti plan` sees them.
#include <string>
#include <vector>

#include "options.h"
#include "plan/predict.h"

namespace tutti::plan {

struct Row {
  Layout layout;
  Link link;
  Step step;
};

/// What the rows rest on.
struct Basis {
  Machine machine;
  Work work;
  std::string model;  ///< what computes so long, in words
};

/// The table and what belongs to it, as Markdown.
std::string plan_markdown(const std::vector<Row>& rows, const PlanOptions& options, const Basis& basis);

/// An array with one object for each row.
std::string plan_json(const std::vector<Row>& rows, const PlanOptions& options, const Basis& basis);

}  // namespace tutti::plan
