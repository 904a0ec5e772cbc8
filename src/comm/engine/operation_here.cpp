#include "comm/engine/operation_here.h"

#include <utility>

namespace tutti::comm {

namespace {
thread_local const Operation* operation_of_this_thread = nullptr;
}

OperationHere::OperationHere(const Operation& operation)
    : before_(std::exchange(operation_of_this_thread, &operation)) {}

OperationHere::~OperationHere() {
  operation_of_this_thread = before_;
}

const Operation* OperationHere::now() {
  return operation_of_this_thread;
}

}  // namespace tutti::comm
