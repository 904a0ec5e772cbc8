#include "comm/backend/current_operation.h"

#include <utility>

namespace tutti::comm {

namespace {
thread_local const Operation* operation_of_thread = nullptr;
thread_local bool suppress_slow_warning = false;
}  // namespace

CurrentOperation::CurrentOperation(const Operation& operation)
    : previous_(std::exchange(operation_of_thread, &operation)) {}

CurrentOperation::~CurrentOperation() {
  operation_of_thread = previous_;
}

const Operation* CurrentOperation::get() {
  return operation_of_thread;
}

SuppressSlowWarning::SuppressSlowWarning(bool active)
    : previous_(std::exchange(suppress_slow_warning, active || suppress_slow_warning)) {}

SuppressSlowWarning::~SuppressSlowWarning() {
  suppress_slow_warning = previous_;
}

bool SuppressSlowWarning::is_active() {
  return suppress_slow_warning;
}

}  // namespace tutti::comm
