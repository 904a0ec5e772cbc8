// Runs every ProcessCase of this folder on 3 processes.
#include <gtest/gtest.h>

#include "support/process_case.h"

namespace tutti::test::on_processes_test {
namespace {

TEST(OnProcesses, EveryCaseOfSyncHolds) {
  run_process_cases();
}

}  // namespace
}  // namespace tutti::test::on_processes_test
