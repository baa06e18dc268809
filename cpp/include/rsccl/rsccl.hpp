/// @file
/// All of rsccl but `rsccl/mpi.hpp`, which needs an MPI.
#pragma once

#include <rsccl/buffer.hpp>
#include <rsccl/communicator.hpp>
#include <rsccl/config.hpp>
#include <rsccl/error.hpp>
#include <rsccl/group.hpp>
#include <rsccl/log.hpp>
#include <rsccl/placement.hpp>
#include <rsccl/request.hpp>
#include <rsccl/store.hpp>
#include <rsccl/types.hpp>
#include <rsccl/unique_id.hpp>
#include <rsccl/version.hpp>
#include <rsccl/view.hpp>
