// The variables of mpirun and srun, and which launcher takes precedence if several have set theirs.
#include "core/launchers.h"

#include <gtest/gtest.h>

#include <map>

#include "tutti/core/error.h"

namespace tutti::launchers_test {
namespace {

using Variables = std::map<std::string, std::string>;

VariableLookup lookup_in(const Variables& variables) {
  return [&variables](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

Environment read(const Variables& variables) {
  return read_environment(lookup_in(variables));
}

Variables with(Variables variables, const Variables& changes) {
  for (const auto& [name, value] : changes) variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::vector<std::string>& names) {
  for (const auto& name : names) variables.erase(name);
  return variables;
}

/// Rank 1 of `mpirun -n 2` of Open MPI 4.1.4.
Variables openmpi() {
  return {{"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "2"},
          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
          {"OMPI_COMM_WORLD_NODE_RANK", "1"},  {"OMPI_UNIVERSE_SIZE", "2"},
          {"PMIX_NAMESPACE", "10813441"},      {"PMIX_RANK", "1"}};
}

/// Rank 1 of `mpirun -n 2` of MPICH 4.0.
Variables mpich() {
  return {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"PMI_FD", "8"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
}

/// Task 5 of `srun -N 3 -n 9` where the nodes take 4, 4 and 1.
Variables slurm() {
  return {{"SLURM_PROCID", "5"},
          {"SLURM_NTASKS", "9"},
          {"SLURM_LOCALID", "1"},
          {"SLURM_NODEID", "1"},
          {"SLURM_NNODES", "3"},
          {"SLURM_STEP_TASKS_PER_NODE", "4(x2),1"},
          {"SLURM_JOB_NODELIST", "node[07-08],gpu1"},
          {"SLURM_JOB_ID", "123456"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_JOB_NAME", "train"}};
}

/// Task 1 of `srun -n 2` on one node.
Variables slurm_on_one_node() {
  return with(slurm(), {{"SLURM_PROCID", "1"},
                        {"SLURM_NTASKS", "2"},
                        {"SLURM_LOCALID", "1"},
                        {"SLURM_NODEID", "0"},
                        {"SLURM_NNODES", "1"},
                        {"SLURM_STEP_TASKS_PER_NODE", "2"},
                        {"SLURM_JOB_NODELIST", "node07"}});
}

const Variables torchrun{{"RANK", "0"}, {"WORLD_SIZE", "1"}};

struct Place {
  int rank, world_size, local_rank, local_world_size, node_rank, num_nodes;
  std::string master_addr;
  int master_port;
  std::string launcher;
};

void expect_place(const Variables& variables, const Place& place) {
  Environment expected;
  expected.rank = place.rank;
  expected.world_size = place.world_size;
  expected.local_rank = place.local_rank;
  expected.local_world_size = place.local_world_size;
  expected.node_rank = place.node_rank;
  expected.num_nodes = place.num_nodes;
  expected.master_addr = place.master_addr;
  expected.master_port = static_cast<std::uint16_t>(place.master_port);
  expected.launcher = place.launcher;
  auto found = read(variables);
  found.job.clear();
  EXPECT_EQ(found, expected) << place.launcher << ": " << found.rank << '/' << found.world_size << " local "
                             << found.local_rank << '/' << found.local_world_size << " node " << found.node_rank << '/'
                             << found.num_nodes << " at " << found.master_addr << ':' << found.master_port << " by "
                             << found.launcher;
}

const Variables master{{"MASTER_ADDR", "node0"}, {"MASTER_PORT", "1234"}};

TEST(Launchers, OpenMpi) {
  expect_place(openmpi(), {1, 2, 1, 2, 0, 1, "local:openmpi-10813441", 0, "openmpi"});
  expect_place(with(openmpi(), master), {1, 2, 1, 2, 0, 1, "node0", 1234, "openmpi"});
  expect_place(with(openmpi(), {{"MASTER_PORT", "1234"}}), {1, 2, 1, 2, 0, 1, "127.0.0.1", 1234, "openmpi"});
  // Without a name, the process tree identifies the job.
  expect_place(without(openmpi(), {"PMIX_NAMESPACE"}), {1, 2, 1, 2, 0, 1, "local:openmpi", 0, "openmpi"});
  // Rank 5 of two nodes with 4 each.
  const Variables two_nodes{
      {"OMPI_COMM_WORLD_RANK", "5"}, {"OMPI_COMM_WORLD_SIZE", "8"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
  expect_place(with(with(openmpi(), two_nodes), master), {5, 8, 1, 4, 1, 2, "node0", 1234, "openmpi"});
  expect_place({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}},
               {0, 1, 0, 1, 0, 1, "127.0.0.1", 29500, "openmpi"});
}

TEST(Launchers, Mpich) {
  expect_place(mpich(), {1, 2, 1, 2, 0, 1, "local:mpich", 0, "mpich"});
  const Variables two_nodes{{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}};
  expect_place(with(with(mpich(), two_nodes), master), {3, 4, 1, 2, 1, 2, "node0", 1234, "mpich"});
}

TEST(Launchers, Slurm) {
  expect_place(slurm(), {5, 9, 1, 4, 1, 3, "node07", 18456, "slurm"});
  expect_place(with(slurm(), {{"SLURM_PROCID", "8"}, {"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "2"}}),
               {8, 9, 0, 1, 2, 3, "node07", 18456, "slurm"});
  expect_place(with(slurm(), master), {5, 9, 1, 4, 1, 3, "node0", 1234, "slurm"});
  expect_place(with(slurm(), {{"MASTER_PORT", "1234"}}), {5, 9, 1, 4, 1, 3, "node07", 1234, "slurm"});
  expect_place(slurm_on_one_node(), {1, 2, 1, 2, 0, 1, "local:slurm-123456.0", 0, "slurm"});
  // A step in a larger allocation.
  expect_place(
      with(slurm_on_one_node(), {{"SLURM_NTASKS", "9"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_STEP_ID", "4"}}),
      {1, 2, 1, 2, 0, 1, "local:slurm-123456.4", 0, "slurm"});
  // The nodes are counted from their list, and assumed equal without further variables.
  expect_place(with(without(slurm(), {"SLURM_NNODES", "SLURM_STEP_TASKS_PER_NODE"}), {{"SLURM_LOCALID", "2"}}),
               {5, 9, 2, 3, 1, 3, "node07", 18456, "slurm"});
  EXPECT_EQ(read(with(slurm(), {{"SLURM_RESTART_COUNT", "2"}})).restart_count, 2);
}

TEST(Launchers, JobsHaveNamesThatTellThemApart) {
  EXPECT_EQ(read(slurm()).job, "Slurm job 123456, step 0");
  EXPECT_EQ(read(with(slurm(), {{"SLURM_HET_SIZE", "2"}})).job, "") << "each component has a number of its own";
  EXPECT_EQ(read(openmpi()).job, "mpirun 10813441");
  EXPECT_EQ(read(mpich()).job, "");
  EXPECT_EQ(read(torchrun).job, "");
}

TEST(Launchers, SlurmsStepTakesPrecedenceOverItsAllocation) {
  const auto step =
      with(slurm(), {{"SLURM_STEP_NODELIST", "gpu[3-5]"}, {"SLURM_STEP_NUM_NODES", "3"}, {"SLURM_NNODES", "7"}});
  expect_place(step, {5, 9, 1, 4, 1, 3, "gpu3", 18456, "slurm"});
}

TEST(Launchers, WithoutSrunSlurmMeansOneProcess) {
  expect_place(without(slurm(), {"SLURM_STEP_ID"}), {0, 1, 0, 1, 0, 1, "127.0.0.1", 29500, "none"});  // a batch script
  EXPECT_EQ(read(with(slurm(), {{"SLURM_JOB_NAME", "interactive"}, {"SLURM_STEP_ID", "4294967290"}})), Environment{});
  EXPECT_EQ(read(with(slurm(), {{"SLURM_JOB_NAME", "bash"}})), Environment{});
  // srun inside these shells.
  EXPECT_EQ(read(with(slurm(), {{"SLURM_JOB_NAME", "interactive"}})).world_size, 9);
  EXPECT_EQ(read(with(slurm(), {{"SLURM_JOB_NAME", "bash"}, {"SLURM_STEP_ID", "1"}})).world_size, 9);
}

TEST(Launchers, AnInnerLauncherTakesPrecedence) {
  const std::vector<std::pair<std::vector<Variables>, std::string>> cases{
      {{torchrun, openmpi(), mpich(), slurm()}, "torchrun"},
      {{openmpi(), mpich(), slurm()}, "openmpi"},
      {{mpich(), slurm()}, "mpich"},
      {{{{"PMI_RANK", "5"}, {"PMI_SIZE", "9"}}, slurm()}, "slurm"},   // srun --mpi=pmi2
      {{openmpi(), without(slurm(), {"SLURM_STEP_ID"})}, "openmpi"},  // mpirun in a batch script
  };
  for (const auto& [launchers, winner] : cases) {
    Variables all;
    for (const auto& one : launchers) all.insert(one.begin(), one.end());
    EXPECT_EQ(read(all).launcher, winner);
    const auto seen = detected_launchers(lookup_in(all));
    EXPECT_EQ(seen.size(), launchers.size());
    for (const auto& one : seen) {
      EXPECT_EQ(one.is_selected, one.name == winner);
      EXPECT_EQ(one.ignored_because.empty(), one.is_selected) << one.ignored_because;
      EXPECT_FALSE(one.variables.empty());
    }
  }
}

TEST(Launchers, DetectedLaunchersListTheirVariables) {
  const auto all = with(with(openmpi(), torchrun), without(slurm(), {"SLURM_STEP_ID"}));
  const auto seen = detected_launchers(lookup_in(all));
  ASSERT_EQ(seen.size(), 3U);
  EXPECT_EQ(seen[0].variables, (std::vector<std::string>{"RANK=0", "WORLD_SIZE=1"}));
  EXPECT_EQ(seen[1].ignored_because, "torchrun takes precedence");
  EXPECT_EQ(seen[2].ignored_because, "not started by srun (SLURM_STEP_ID is not set)");
  EXPECT_TRUE(detected_launchers(lookup_in({{"SLURM_JOB_ID", "1"}, {"OMPI_UNIVERSE_SIZE", "2"}})).empty());
}

struct Complaint {
  Variables variables;
  std::vector<std::string> parts;
};

TEST(Launchers, NameTheInvalidVariable) {
  const Variables second_node{
      {"OMPI_COMM_WORLD_RANK", "5"}, {"OMPI_COMM_WORLD_SIZE", "8"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
  const std::vector<Complaint> cases{
      {without(openmpi(), {"OMPI_COMM_WORLD_SIZE"}), {"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE is not"}},
      {without(openmpi(), {"OMPI_COMM_WORLD_RANK"}), {"OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK is not"}},
      {without(openmpi(), {"OMPI_COMM_WORLD_LOCAL_SIZE"}), {"OMPI_COMM_WORLD_LOCAL_SIZE is not"}},
      {without(openmpi(), {"OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"}),
       {"OMPI_COMM_WORLD_LOCAL_RANK"}},
      {with(openmpi(), {{"OMPI_COMM_WORLD_RANK", "one"}}), {"OMPI_COMM_WORLD_RANK='one'"}},
      {with(openmpi(), {{"OMPI_COMM_WORLD_RANK", "2"}}), {"OMPI_COMM_WORLD_RANK=2", "out of range"}},
      {with(openmpi(), {{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}}), {"OMPI_COMM_WORLD_LOCAL_SIZE=3", "more than"}},
      {with(openmpi(), {{"OMPI_COMM_WORLD_SIZE", "3"}}), {"OMPI_COMM_WORLD_SIZE=3", "--map-by ppr:N:node"}},
      {with(openmpi(), second_node), {"MASTER_ADDR is not set", "2 nodes", "mpirun -x MASTER_ADDR"}},
      {with(with(openmpi(), second_node), {{"MASTER_ADDR", "a"}}), {"MASTER_PORT is not set", "2 nodes"}},
      {with(openmpi(), {{"MASTER_ADDR", "a"}}), {"MASTER_ADDR='a'", "MASTER_PORT is not"}},
      {with(openmpi(), {{"MASTER_PORT", "0"}}), {"MASTER_PORT=0"}},
      {without(mpich(), {"PMI_SIZE"}), {"PMI_RANK=1", "PMI_SIZE is not"}},
      {without(mpich(), {"MPI_LOCALRANKID"}), {"MPI_LOCALNRANKS=2", "MPI_LOCALRANKID is not"}},
      {without(mpich(), {"MPI_LOCALRANKID", "MPI_LOCALNRANKS"}), {"MPI_LOCALRANKID and MPI_LOCALNRANKS", "PMI_SIZE=2"}},
      {with(mpich(), {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}}), {"MASTER_ADDR is not set", "-genv"}},
      {without(slurm(), {"SLURM_NTASKS"}), {"SLURM_PROCID=5", "SLURM_NTASKS is not"}},
      {without(slurm(), {"SLURM_PROCID"}), {"SLURM_NTASKS=9", "SLURM_PROCID is not"}},
      {with(slurm(), {{"SLURM_PROCID", "9"}}), {"SLURM_PROCID=9", "out of range"}},
      {with(slurm(), {{"SLURM_NODEID", "3"}}), {"SLURM_NODEID=3", "SLURM_NNODES=3"}},
      {without(slurm(), {"SLURM_NODEID"}), {"SLURM_NODEID is not set"}},
      {with(slurm(), {{"SLURM_NODEID", "-1"}}), {"SLURM_NODEID='-1'"}},
      {with(slurm(), {{"SLURM_NNODES", "0"}}), {"SLURM_NNODES=0"}},
      {with(slurm(), {{"SLURM_NNODES", "10"}}), {"SLURM_NNODES=10", "9 tasks"}},
      {with(slurm(), {{"SLURM_LOCALID", "4"}}), {"SLURM_LOCALID=4", "4 tasks on node 1"}},
      {without(slurm(), {"SLURM_LOCALID"}), {"SLURM_LOCALID is not set"}},
      {with(slurm_on_one_node(), {{"SLURM_LOCALID", "0"}}), {"SLURM_LOCALID=0", "SLURM_PROCID=1"}},
      {with(slurm(), {{"SLURM_STEP_TASKS_PER_NODE", "4(x3)"}}),
       {"SLURM_STEP_TASKS_PER_NODE='4(x3)'", "SLURM_NTASKS=9"}},
      {with(slurm(), {{"SLURM_STEP_TASKS_PER_NODE", "4(x2"}}), {"SLURM_STEP_TASKS_PER_NODE='4(x2'", "list of counts"}},
      {with(without(slurm(), {"SLURM_STEP_TASKS_PER_NODE"}), {{"SLURM_NTASKS", "10"}}), {"SLURM_STEP_TASKS_PER_NODE"}},
      {with(slurm(), {{"SLURM_JOB_NODELIST", "node[07-"}}), {"SLURM_JOB_NODELIST='node[07-'", "list of nodes"}},
      {without(slurm(), {"SLURM_JOB_NODELIST"}), {"SLURM_JOB_NODELIST and MASTER_ADDR", "host of task 0"}},
      {without(slurm(), {"SLURM_JOB_ID"}), {"SLURM_JOB_ID and MASTER_PORT", "3 nodes"}},
      {with(slurm(), {{"SLURM_JOB_ID", "12x"}}), {"SLURM_JOB_ID='12x'"}},
  };
  for (const auto& one : cases) {
    try {
      read(one.variables);
      ADD_FAILURE() << "no UsageError; expected " << one.parts.front();
    } catch (const UsageError& error) {
      const std::string message = error.what();
      EXPECT_EQ(message.find('\n'), std::string::npos);
      for (const auto& part : one.parts)
        EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
    }
  }
}

}  // namespace
}  // namespace tutti::launchers_test
