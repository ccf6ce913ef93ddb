"""The mutants: privacy bugs as patches of the package's own source, each with the tests that have to notice it.

A patch is exact text, found once in the whole package wherever it lies, and what stands there instead: code can be
moved
without touching this table. If a change of the package makes a patch unfit, `run.py` refuses it: say then how the same
bug would look in the new code.
"""

from __future__ import annotations

from dataclasses import dataclass

_TESTS = "tests/"


@dataclass(frozen=True)
class Mutant:
    """``bug``: what is wrong, in words. ``patches``: (old text, new text). ``tests``: pytest ids."""

    name: str
    bug: str
    patches: tuple[tuple[str, str], ...]
    tests: tuple[str, ...]


def _mutant(name: str, bug: str, *patches_and_tests: tuple[str, str] | str) -> Mutant:
    patches = tuple(part for part in patches_and_tests if isinstance(part, tuple))
    tests = tuple(_TESTS + part for part in patches_and_tests if isinstance(part, str))
    return Mutant(name, bug, patches, tests)


ENGINE, MODES = "training/test_engine.py::", "training/test_modes.py::"
BOOK = "training/test_bookkeeping.py::"
PADDING, LOSSES, WANDB = (
    "data/test_padding.py::",
    "training/test_losses.py::",
    "training/test_weights_and_biases.py::",
)
TRAINER, SEEDING = "training/test_trainer.py::", "noise/test_seeding.py::"
MECHANISM, BAD_DATA = "planning/test_mechanism.py::", "faults/test_bad_data.py::"
ACCOUNT, ACCOUNTS = "accounting/test_account.py::", "training/test_accounts.py::"
COSTS = "accounting/test_plan_costs.py::"
KILLERS, REPLAY = "mutants/test_killers.py::", "replay/test_replay.py::"
PLAN, LEDGER, JOURNAL = "planning/test_plan.py::", "accounting/test_ledger.py::", "accounting/test_journal.py::"
LABELS, NULL = "studies/test_labels.py::", "auditing/test_null.py::"
ALIGN, LIKELIHOOD = "selection/test_align.py::", "selection/test_likelihood.py::"
MATCH, THRESHOLD = "studies/test_match.py::", "selection/test_threshold.py::"
GLISTER, PICKS = "selection/test_exponential.py::", "noise/test_exponential.py::"
REPEAT, TUNING = "accounting/test_repeat.py::", "tuning/test_plan.py::"
TUNE, LOOP = "tuning/test_tune.py::", "training/test_loop.py::"
TABLE, SCALING = "data/test_table.py::", "data/test_table_scaling.py::"
OWNER, REGRESSION = "data/test_table_owner.py::", "training/test_regression.py::"
LAW, RECORD_SET = "distributed/test_law.py::", "data/test_record_set.py::"
NOISE, QUANTILE, POISSON = (
    "noise/test_noise.py::",
    "noise/test_quantile.py::",
    "training/test_poisson.py::",
)

_NOISE = [
    _mutant(
        "float32-box-muller", "noise of a step by torch.normal in float32, which ends at 5.77 deviations",
        ("z = self.noise(tuple(p.shape))", "z = torch.normal(0.0, 1.0, tuple(p.shape)).numpy().astype(np.float64)"),
        ENGINE + "test_noise_beyond_what_float32_normals_reach_is_added_as_it_is",
    ),
    _mutant(
        "float32-selection-noise", "normals of selections from 24-bit uniforms",
        ("    if not secure:\n        return rng.standard_normal(shape)",
         "    if not secure:\n        return rng.standard_normal(shape, dtype=np.float32).astype(np.float64)"),
        KILLERS + "test_standard_normals_have_all_digits_of_float64",
    ),
    _mutant(
        "sum-in-float32", "the clipped sum is rounded to float32 before its noise",
        ("p.summed_grad = total.double()", "p.summed_grad = total.float()"),
        KILLERS + "test_the_sum_of_a_step_is_exact_to_float64",
    ),
    _mutant(
        "mersenne-twister", "a generator whose state an observer can solve for",
        ('return np.random.Generator(AESCounter(key=int.from_bytes(key, "little")))',
         'return np.random.Generator(np.random.MT19937(int.from_bytes(key, "little")))'),
        KILLERS + "test_generators_are_keyed_ciphers",
    ),
    _mutant(
        "seeded-noise", "the seed of the run, guessable, decides noise and masks",
        ("        if self.reproducible:\n", "        if self.reproducible or self.seed is not None:\n"),
        SEEDING + "test_a_seed_fixes_nothing_secret",
    ),
    _mutant(
        "32-bit-entropy", "the operating system is asked for 32 bits",
        ("return secrets.token_bytes(_ENTROPY_BYTES)", "return secrets.token_bytes(4)"),
        SEEDING + "test_the_secret_root_has_256_bits_and_the_key_is_full",
    ),
    _mutant(
        "attempt-not-in-key", "a resumed run replays masks and noise: the key forgets the attempt",
        ("stream, self.attempt, self.context, rank])", "stream, self.context, rank])"),
        SEEDING + "test_streams_attempts_contexts_and_ranks_are_separate",
    ),
    _mutant(
        "attempt-not-handed-over", "a resumed run replays masks and noise: the trainer does not count attempts",
        ("attempt=session.ledger.attempts,", "attempt=0,"),
        KILLERS + "test_a_resumed_run_draws_other_masks_and_noise",
    ),
    _mutant(
        "step-noise-without-clip-norm", "noise σ instead of σ·C",
        ("(self.noise_multiplier * self.max_grad_norm)", "self.noise_multiplier"),
        ENGINE + "test_noise_scale_within_one_percent",
    ),
    _mutant(
        "release-noise-without-sensitivity", "noise σ instead of σ·Δ on what a selection releases",
        ("* (noise_multiplier * sensitivity)", "* noise_multiplier"),
        NOISE + "test_a_release_adds_scaled_normals",
    ),
    _mutant(
        "half-sigma", "steps are taken with half the noise of the plan",
        ("self.engine.set_noise_multiplier(sigma)  # a branch",
         "self.engine.set_noise_multiplier(sigma / 2)  # a branch"),
        TRAINER + "test_sampler_optimizer_and_accountant_agree",
    ),
    _mutant(
        "missing-sigma-is-zero", "a noise multiplier that got lost means no noise",
        ("    if noise_multiplier is None or not (math.isfinite(noise_multiplier) and noise_multiplier > 0):",
         "    noise_multiplier = noise_multiplier or 0.0\n    if not math.isfinite(noise_multiplier):"),
        NOISE + "test_a_release_without_a_noise_multiplier_is_refused",
    ),
    _mutant(
        "missing-engine-sigma-is-zero", "the engine takes a lost noise multiplier for 0",
        ("        _check_noise(sigma, max_grad_norm, noise)\n", "        sigma = sigma or 0.0\n"),
        ENGINE + "test_a_noise_multiplier_that_is_no_number_is_refused",
    ),
    _mutant(
        "noise-for-every-piece", "each piece of a large batch takes a noisy step of its own",
        ("            self.optimizer.add(sums)\n",
         "            self.optimizer.add(sums); self.optimizer.step()\n"),
        ENGINE + "test_noise_is_added_once_however_many_pieces",
    ),
    _mutant(
        "no-noise-for-pieces", "batches in several pieces get no noise",
        ("        before = state_of(self.model)\n",
         "        before = state_of(self.model)\n"
         "        self.optimizer.noise = self.optimizer.noise if len(y) <= self.piece else None\n"),
        ENGINE + "test_noise_is_added_once_however_many_pieces",
    ),
    _mutant(
        "noise-by-every-rank", "each process adds noise: the step has not the law of one process",
        ("if self.noise is not None and self.world.main:", "if self.noise is not None:"),
        ENGINE + "test_rank_0_alone_adds_noise_before_the_sums_are_added_up",
    ),
]  # fmt: skip

_CLIPPING = [
    _mutant(
        "probe-at-large-clip-norm", "modes are tried where nothing is clipped, so wrong norms pass",
        ("        return _FAR_BELOW * float(norms[norms > 0].min())\n", "        return 1e9\n"),
        ("if norm and length < reference.low / 2:", "if False:"),
        MODES + "test_the_probe_alone_finds_norms_that_miss_a_part",
    ),
    _mutant(
        "probe-accepts-anything", "a mode with wrong gradients is admitted: records may mix",
        ("if not float(wrong.norm()) <= tolerance * float(part.norm()) + floor * whole:", "if False:"),
        ("if not float((got - reference.rows.sum(dim=0)).norm()) <= allowed:", "if False:"),
        MODES + "test_models_that_mix_records_get_no_mode",
    ),
    _mutant(
        "weights-used-twice", "ghost clipping does not look whether a weight was used twice",
        ("        refuse_weights_used_twice(losses, parameters)\n", ""),
        MODES + "test_a_weight_that_some_records_use_twice_stops_the_step",
    ),
    _mutant(
        "weights-may-change", "a model that writes to its weights while it computes goes on",
        ("        refuse_changes(self.model, before)\n", ""),
        MODES + "test_a_step_in_which_weights_change_stops",
    ),
    _mutant(
        "rows-may-change-places", "only the sums of a model's weights are compared",
        ("return torch.equal(one.detach().reshape(-1).view(whole), other.reshape(-1).view(whole))",
         "return bool(one.detach().reshape(-1).view(whole).sum() == other.reshape(-1).view(whole).sum())"),
        MODES + "test_a_step_in_which_weights_change_stops",
    ),
    _mutant(
        "buffers-may-change", "a model that notes records in a buffer goes on",
        ("return [*model.named_parameters(), *model.named_buffers()]", "return [*model.named_parameters()]"),
        MODES + "test_a_step_in_which_weights_change_stops",
    ),
    _mutant(
        "loop-s-pass-may-change-weights", "the loop's own pass rewrites weights before the step looks at them",
        ("        refuse_changes(module, state)\n", ""),
        LOOP + "test_a_forward_pass_of_the_loop_in_which_weights_change_is_refused",
    ),
    _mutant(
        "selection-may-change-weights", "one record changes how the next ones are seen by a selection",
        ("        refuse_changes(self.model, loaded)  # else", "        # else"),
        LOOP + "test_a_selection_in_which_weights_change_stops",
    ),
    _mutant(
        "mixing-outside-of-training", "a selection sees records through a model that mixes them",
        ("        refuse_mixing(self.model, made_up_batch(self)[0])\n", ""),
        LOOP + "test_a_model_that_mixes_records_outside_of_training_is_refused_where_records_are_selected",
    ),
    _mutant(
        "max-norm-let-through", "an embedding rewrites the rows of the words it looks up",
        ('if getattr(module, "max_norm", None) is not None:', "if False:"),
        MODES + "test_an_embedding_that_rewrites_its_rows_is_refused_before_anything_is_tried",
    ),
    _mutant(
        "records-summed-in-float32", "gradients are added up in float32: a record moves the rounding of others",
        ("into.addmm_(factors, columns.double())", "into.add_(some.T @ columns)"),
        ENGINE + "test_without_a_record_the_sum_of_many_aligned_ones_is_at_most_the_clip_norm_away",
    ),
    _mutant(
        "positions-summed-in-float32", "book-keeping adds up records in float32",
        ("total.addmm_(scaled.flatten(0, 1).T, a[part].double().flatten(0, 1))",
         "total.add_(scaled.float().flatten(0, 1).T @ a[part].flatten(0, 1))"),
        ENGINE + "test_without_a_record_the_sum_of_many_aligned_ones_is_at_most_the_clip_norm_away",
    ),
    _mutant(
        "no-room-for-the-rounding-of-sums", "nothing is left for what a record moves in the rounding of others",
        ("    return 2 * 1.01 * additions * 2.0**-53 * most\n", "    return 0.0\n"),
        ENGINE + "test_slack_has_room_for_the_rounding_of_sums",
    ),
    _mutant(
        "float32-norms", "norms accumulated in float32, which understates them",
        ("    width = max(1, min(flat.shape[1], _TILE))\n",
         "    return torch.linalg.vector_norm(flat, dim=1).double()\n    width = 1\n"),
        ENGINE + "test_a_contribution_of_millions_of_elements_stays_within_the_clip_norm",
    ),
    _mutant(
        "no-slack", "nothing is left for rounding when gradients are clipped",
        ("    return 4 * torch.finfo(dtype).eps + elements * torch.finfo(torch.float64).eps", "    return 0.0"),
        ENGINE + "test_a_contribution_stays_within_the_clip_norm_whatever_its_size",
        REPLAY + "test_a_step_moves_by_at_most_the_clip_norm",
        ENGINE + "test_slack_grows_with_the_number_of_elements",
    ),
    _mutant(
        "factors-rounded-up", "clip factors are rounded to nearest, which may lift a bound",
        ("    return torch.where(rounded.to(factors.dtype) > factors, below, rounded)", "    return rounded"),
        ENGINE + "test_factors_are_rounded_down",
    ),
    _mutant(
        "nothing-clipped", "the clip factor is at least 1 instead of at most 1",
        (".clamp(max=1.0)\n    return", ".clamp(min=1.0)\n    return"),
        ENGINE + "test_clipped_norms_never_exceed_the_bound",
    ),
    _mutant(
        "factor-above-one", "short gradients are lengthened to C: min(1, C/norm) lost its 1",
        (".clamp(max=1.0)\n    return", "\n    return"),
        ENGINE + "test_a_noiseless_step_is_the_clipped_sum_over_the_public_batch_size",
    ),
    _mutant(
        "clip-norm-doubled", "gradients are clipped to 2C",
        ("clip_factors(norms, self.max_norm,", "clip_factors(norms, 2 * self.max_norm,"),
        ENGINE + "test_a_contribution_stays_within_the_clip_norm_whatever_its_size",
    ),
    _mutant(
        "bias-not-measured", "the closed form forgets the bias when it measures a gradient",
        ("row_norms(r) * lengths.square().add(1).sqrt()", "row_norms(r) * lengths"),
        ENGINE + "test_a_contribution_stays_within_the_clip_norm_whatever_its_size",
    ),
    _mutant(
        "nan-rows-let-through", "records that are not finite stay in the sum",
        ("    return torch.where(kept.reshape(-1, *[1] * (rows.dim() - 1)), rows, torch.zeros_like(rows))",
         "    return rows"),
        ENGINE + "test_a_record_that_is_not_finite_contributes_nothing",
    ),
    _mutant(
        "batch-norm-let-through", "BatchNorm, which mixes records, is not replaced",
        ("    replaced = _freeze_vectors(model)\n", "    return model, []\n    replaced = _freeze_vectors(model)\n"),
        KILLERS + "test_batch_norm_does_not_stay",
    ),
    _mutant(
        "padded-with-others", "a collate function sees the whole batch",
        ("        return collated([self.record(int(row)) for row in rows], lambda: self.record(0))\n",
         "        if self.collate is not None:\n"
         "            return self.collate([self.source.record(int(row)) for row in rows])\n"
         "        return collated([self.record(int(row)) for row in rows], lambda: self.record(0))\n"),
        PADDING + "test_a_row_is_a_function_of_its_record",
    ),
    _mutant(
        "errors-of-everyone", "every target is compared with every output",
        ("super().forward(outputs.reshape(targets.shape), targets)", "super().forward(outputs, targets)"),
        LOSSES + "test_a_record_s_error_has_nothing_to_do_with_others",
    ),
    _mutant(
        "exact-loss-sent", "an exact metric of private records goes to Weights & Biases",
        ("        self.rows.log(row)\n", "        self.rows.log({**row, \"trn_loss\": 0.0})\n"),
        WANDB + "test_it_is_sent_what_the_table_of_metrics_holds",
    ),
    _mutant(
        "buffers-let-through", "running statistics of records leave with the model",
        ("    for name, _ in fixed.named_buffers():\n", "    for name, _ in ():\n"),
        KILLERS + "test_a_model_with_buffers_is_refused",
    ),
    _mutant(
        "weights-not-clamped", "the engine multiplies clipped gradients by weights above 1",
        ("weights.nan_to_num(0.0).clamp(0.0, 1.0)", "weights.nan_to_num(0.0)"),
        ENGINE + "test_a_weight_cannot_lift_a_record_above_the_clip_norm",
    ),
    _mutant(
        "realised-batch-size", "the step is divided by the size of the batch, which is secret",
        ("        before = state_of(self.model)\n",
         "        before = state_of(self.model)\n"
         "        self.optimizer.expected_batch_size = max(1, len(y))\n"),
        ENGINE + "test_a_noiseless_step_is_the_clipped_sum_over_the_public_batch_size",
    ),
    _mutant(
        "empty-batch-no-step", "an empty batch takes no step, which shows that it was empty",
        ("        before = state_of(self.model)\n",
         "        if not len(y):\n            return\n        before = state_of(self.model)\n"),
        ENGINE + "test_an_empty_batch_still_steps_with_noise",
    ),
]  # fmt: skip

_HALF_ROWS = [
    _mutant(
        "lengths-understated", "lengths of stored rows are float32 sums without room for their rounding",
        ("np.sqrt(squares * _ROUNDING)", "np.sqrt(squares) * (1 - 1e-7)"),
        "data/test_half_rows.py::test_products_and_sums_are_those_of_the_stored_numbers",
    ),
    _mutant(
        "infinite-halves-are-large", "infinity and NaN in half precision are read as large numbers",
        ("if abs(x[k]) >= _NOT_FINITE:", "if False:"),
        "data/test_half_rows.py::test_every_half_precision_number_is_read_right",
    ),
    _mutant(
        "stored-rows-not-clipped", "a linear head on stored features sums rows without their clip factors",
        ("rows.weighted_sum(clipped)", "rows.weighted_sum(r)"),
        "training/test_stored_rows.py::test_no_record_contributes_more_than_the_clip_norm",
    ),
    _mutant(
        "stored-rows-summed-in-float32", "stored rows are added up in float32: a record moves the rounding of others",
        ("sums = np.empty((classes, _SUMMED_COLUMNS), np.float64)",
         "sums = np.empty((classes, _SUMMED_COLUMNS), np.float32)"),
        "data/test_half_rows.py::test_products_and_sums_are_those_of_the_stored_numbers",
    ),
    _mutant(
        "biases-summed-in-float32", "biases of a head on stored rows are added up in float32",
        ("block.sum(dim=0) for block in weights.double().split(_SUMMED_ROWS)",
         "block.sum(dim=0).double() for block in weights.split(_SUMMED_ROWS)"),
        "training/test_stored_rows.py::"
        "test_without_a_record_the_sum_of_many_aligned_ones_is_at_most_the_clip_norm_away",
    ),
]  # fmt: skip

_BOOKKEEPING = [
    _mutant(
        "biases-not-measured", "book-keeping forgets biases when it measures gradients",
        ("torch.stack([part.lengths() for part in parts], dim=1)",
         "torch.stack([part.lengths() for p, part in zip(parameters, parts) if p.dim() > 1], dim=1)"),
        BOOK + "test_every_kind_of_layer_is_exact",
    ),
    _mutant(
        "convolution-not-clipped", "clip factors are not applied to convolutions",
        (" * factors[part, None, None, None]\n", "\n"),
        BOOK + "test_every_kind_of_layer_is_exact",
    ),
    _mutant(
        "sequences-not-clipped", "clip factors are not applied to linear layers",
        ("            scaled = g[part].double() * factors[part].double()[:, None, None]\n            total.addmm_(",
         "            scaled = g[part].double()\n            total.addmm_("),
        BOOK + "test_every_kind_of_layer_is_exact",
    ),
    _mutant(
        "not-finite-kept", "book-keeping multiplies records that are not finite by 0",
        ("        kept = None if bool(finite.all()) else finite", "        kept = None"),
        BOOK + "test_a_record_that_is_not_finite_contributes_nothing_and_spoils_nothing",
    ),
    _mutant(
        "other-uses-let-through", "weights that are used by hand are neither measured nor noticed",
        ("if any(leaf in self._parameters for leaf in leaves_of(losses)):", "if False:"),
        BOOK + "test_a_use_that_only_some_records_make_stops_the_step",
    ),
    _mutant(
        "rows-not-counted", "a layer whose rows are positions is measured as if they were records",
        ("        if len(rows) != self.rows:\n", "        if False:\n"),
        BOOK + "test_other_uses_of_weights_stop_the_step",
    ),
    _mutant(
        "last-use-only", "of a weight that is used twice one use is measured",
        ("    kinds = {type(use) for use in uses}\n",
         "    uses = uses[-1:]\n    kinds = {type(use) for use in uses}\n"),
        BOOK + "test_no_part_of_a_gradient_is_forgotten",
    ),
    _mutant(
        "no-room-for-cancelling", "a record whose terms cancel is scaled up with its rounding",
        ("        bound = (squares.clamp_min(0) + rounding).sqrt() + short\n",
         "        bound = squares.clamp_min(0).sqrt()\n"),
        BOOK + "test_gradients_that_cancel_do_not_grow_with_their_rounding",
    ),
    _mutant(
        "short-products", "gradients are summed in TF32 or bfloat16, measured in float64",
        ('if torch.get_float32_matmul_precision() != "highest" or torch.is_autocast_enabled(device):', "if False:"),
        BOOK + "test_short_matrix_products_are_refused",
    ),
    _mutant(
        "kernel-element-missed", "a Gram matrix of patches misses an element of the kernel",
        ("            for x in range(kernel.kernel[1]):\n",
         "            for x in range(max(1, kernel.kernel[1] - 1)):\n"),
        BOOK + "test_convolutions_of_any_shape",
    ),
]  # fmt: skip

_DRAWN = "drawn = np.flatnonzero(rng.random(len(pool)) < rates)"
_LOOP = f"""    for _ in range(steps):
        whose = None if draw is None else draw.once(rate, rng)
        {_DRAWN} if whose is None else whose.records
"""
_HANDED_OVER = [
    _mutant(
        "unreadable-record-ends-the-run", "a record that cannot be read ends the run, with its reader's words",
        ("        except (Exception, SystemExit, GeneratorExit):  # what it says might tell what is in a record\n"
         "            return None\n",
         "        except ZeroDivisionError:\n            return None\n"),
        BAD_DATA + "test_a_record_that_cannot_be_read_does_not_end_a_run",
    ),
    _mutant(
        "record-that-exits-ends-the-run", "a record whose reader ends the process ends the run",
        ("        except (Exception, SystemExit, GeneratorExit):  # what it says",
         "        except Exception:  # what it says"),
        BAD_DATA + "test_a_record_of_another_kind_does_not_end_a_run",
    ),
    _mutant(
        "record-elsewhere-ends-the-run", "a record on another device ends the run",
        ("(part.shape[1:], part.dtype, part.device) == (wanted.shape[1:], wanted.dtype, wanted.device)",
         "(part.shape[1:], part.dtype) == (wanted.shape[1:], wanted.dtype)"),
        BAD_DATA + "test_a_record_of_another_kind_does_not_end_a_run",
    ),
    _mutant(
        "tables-of-functions-are-not-seen", "a word outside of a table without a layer ends the run",
        ("            self.found |= {len(value) for value in given if value.is_floating_point()}\n",
         "            pass\n"),
        BAD_DATA + "test_a_word_outside_of_the_vocabulary_does_not_end_a_run",
    ),
    _mutant(
        "strange-words-let-through", "a word outside of the vocabulary ends the run",
        ("            guard.vocabulary = vocabulary\n", "            pass\n"),
        BAD_DATA + "test_a_word_outside_of_the_vocabulary_does_not_end_a_run",
    ),
    _mutant(
        "other-records-on-resume", "a run is resumed on other records",
        ("            if self._known[place] not in (np.uint64(0), found):\n", "            if False:\n"),
        BAD_DATA + "test_a_run_is_resumed_on_the_records_that_it_began_with",
    ),
    _mutant(
        "digests-for-everyone", "digests of private records can be read by other users",
        ("self._known.tobytes(), mode=0o600)", "self._known.tobytes())"),
        BAD_DATA + "test_a_run_is_resumed_on_the_records_that_it_began_with",
    ),
    _mutant(
        "shared-records", "a record in D and in V pays once",
        ("    refuse_shared_records(data, validation_is_read=plan.validation_is_read, test_is_shown=tested)\n", ""),
        BAD_DATA + "test_a_trainer_refuses_sets_that_share_records_before_anything_is_spent",
    ),
    _mutant(
        "oversampled-records", "a record that is in D several times pays once",
        ("(rows.min() < 0 or len(np.unique(rows)) < len(rows))", "rows.min() < 0"),
        BAD_DATA + "test_a_trainer_refuses_a_record_that_is_there_twice",
    ),
    _mutant(
        "sources-are-believed", "sets that a plugin's source builds are not looked at",
        ("        if own:\n            _refuse_what_pays_twice(data, plan, tested=data.test is not None)\n", ""),
        BAD_DATA + "test_a_source_is_believed_as_little_as_a_program",
    ),
    _mutant(
        "owners-nobody-counts", "a source hands over owners, and the plan counts records",
        ("        if (records.owners is not None) != by_owner:\n", "        if by_owner and records.owners is None:\n"),
        BAD_DATA + "test_owners_have_to_be_those_that_the_plan_counts",
    ),
    _mutant(
        "shared-records-in-a-loop", "a record in D and in V of a loop pays once",
        ("validation_is_read=plan.validation_is_read, test_is_shown=tested)",
         "validation_is_read=False, test_is_shown=tested)"),
        LOOP + "test_a_loop_refuses_sets_that_share_records_before_anything_is_spent",
    ),
    _mutant(
        "shared-records-joined", "a record of V inside of joined sets is not found in D",
        ("    if isinstance(dataset, ConcatDataset):\n", "    if False:\n"),
        BAD_DATA + "test_sets_that_share_records_are_refused",
    ),
    _mutant(
        "shared-memory", "tensors of D and of V that lie in the same memory are taken for sets apart",
        ("    return bool((first < last).any())  #", "    return False  #"),
        BAD_DATA + "test_sets_that_share_records_are_refused",
    ),
    _mutant(
        "shared-columns", "columns of the same records in D and in V are taken for sets apart",
        ("reach = max(x.stride(0), 1 + sum(", "reach = max(1, 1 + sum("),
        BAD_DATA + "test_sets_that_share_records_are_refused",
    ),
    _mutant(
        "labels-beyond-the-classes", "a record whose label is no class counts as one of class 0",
        ("        known = (y >= 0) & (y < self.count)\n", "        known = y >= -1\n"),
        RECORD_SET + "test_labels_are_those_of_the_records_and_impossible_ones_do_no_harm",
        BAD_DATA + "test_a_label_that_is_no_class_makes_its_record_void",
    ),
    _mutant(
        "stores-unguarded", "a store of somebody else's ends the run, and says on which record",
        ("    may_fail: bool = True\n", "    may_fail: bool = False\n"),
        RECORD_SET + "test_a_store_that_does_not_say_that_it_reads_everything_is_guarded",
    ),
    _mutant(
        "test-set-unguarded", "where a loop has no test set, V is read unguarded in its place",
        ("            parts.append(parts[1])\n", "            parts.append(as_records(data.validation))\n"),
        BAD_DATA + "test_without_a_test_set_the_guarded_v_stands_in_its_place",
    ),
]  # fmt: skip

_REGISTERED = [
    _mutant(
        "branch-noise-stays", "plain epochs after branched ones keep the branch's noise",
        ("            self.engine.set_noise_multiplier(sigma)  # a branch",
         "            self.engine.set_noise_multiplier(sigma if planned.branched else self.engine.optimizer."
         "noise_multiplier)  # a branch"),
        MECHANISM + "test_plain_epochs_after_branched_ones_have_the_plan_s_noise",
    ),
    _mutant(
        "freeze-of-many-scores", "picks whose scores all move are charged as one freeze",
        ("if type(self.event) is GumbelFreeze and self.own_score:", "if type(self.event) is GumbelFreeze:"),
        MECHANISM + "test_picks_are_drawn_with_the_epsilon0_of_their_event",
    ),
    _mutant(
        "release-not-rebuilt", "a subclass of Release draws with another ε₀ than is charged",
        ("        plain = (_built_anew(release) for release in declared)\n", "        plain = declared\n"),
        MECHANISM + "test_a_release_of_a_kind_of_one_s_own_has_nothing_but_what_it_declares",
    ),
    _mutant(
        "epoch-not-rebuilt", "a subclass of EpochPlan is charged at one rate and drawn at another",
        ("            EpochPlan(e.pool, e.steps, e.rate, e.selects, e.branched) for e in mechanism.",
         "            e for e in mechanism."),
        MECHANISM + "test_an_epoch_of_a_kind_of_one_s_own_is_charged_as_it_is_drawn",
    ),
    _mutant(
        "pool-not-rebuilt", "a pool that skips its checks is believed",
        ("    pool = Pool(**{f.name: getattr(pool, f.name) for f in fields(Pool)})\n", ""),
        "training/test_strategies.py::test_a_pool_that_has_passed_no_check_is_checked_at_the_door",
    ),
    _mutant(
        "own-bound-believed", "a mechanism's own composition may claim less than it costs",
        ("return own if own.epsilon >= ours.epsilon and own.delta <= delta else ours", "return own"),
        MECHANISM + "test_a_mechanism_s_own_composition_cannot_claim_less_than_the_accountants_find",
    ),
]  # fmt: skip

_ACCOUNT = [
    _mutant(
        "refused-resume-refunds", "a resume that is refused settles an empty ledger",
        ("        elif not self.run.resumes:\n            self.reservation.settle(())",
         "        else:\n            self.reservation.settle(())"),
        ACCOUNTS + "test_a_killed_run_that_cannot_be_resumed_keeps_what_it_reserved",
    ),
    _mutant(
        "charges-forgotten", "what a run is known to have charged becomes less",
        ("spent, most = larger(held.charged, charged)", "spent, most = larger((), charged)"),
        ACCOUNT + "test_what_a_run_is_known_to_have_charged_never_becomes_less",
    ),
    _mutant(
        "copies-go-on", "copies of a run's folder go on under one reservation",
        ("            if known not in known_by:\n", "            if False:\n"),
        ACCOUNT + "test_of_several_copies_of_a_folder_one_goes_on",
    ),
    _mutant(
        "attempts-alike", "copies of a folder begin their attempts with the same record",
        (', "nonce": secrets.token_hex(8)})', "})"),
        ACCOUNT + "test_of_several_copies_of_a_folder_one_goes_on",
    ),
    _mutant(
        "no-witness", "the account is not told how far a run has come",
        ("witness = None if reservation is None else reservation.witness", "witness = None"),
        ACCOUNTS + "test_copies_of_a_killed_run_are_refused_after_the_first_goes_on",
    ),
    _mutant(
        "account-left-behind", "copies of a run are resumed without its account",
        ('    if ledger.notes.get(_NOTE, "") != account:\n', "    if False:\n"),
        ACCOUNTS + "test_a_run_stays_under_its_account",
    ),
]  # fmt: skip

_SAMPLING = [
    _mutant(
        "fixed-size-batches", "shuffled batches of one size instead of Poisson batches",
        (_DRAWN, "drawn = np.sort(rng.permutation(len(pool))[: round(rate * len(pool))])"),
        POISSON + "test_batch_sizes_vary_as_sums_of_independent_coins",
    ),
    _mutant(
        "one-mask-for-all-steps", "coins are drawn once and used in every step",
        (_LOOP, f"    mask = rng.random(len(pool))\n{_LOOP.replace('rng.random(len(pool))', 'mask')}"),
        POISSON + "test_every_record_falls_into_batches_at_the_rate",
    ),
    _mutant(
        "shared-coin", "one coin decides about all records of a batch",
        (_DRAWN, _DRAWN.replace("rng.random(len(pool))", "np.full(len(pool), rng.random())")),
        POISSON + "test_two_records_are_included_independently",
    ),
    _mutant(
        "empty-batches-skipped", "empty batches are left out, so the number of steps tells",
        (_LOOP, _LOOP + "        if not len(drawn):\n            continue\n"),
        POISSON + "test_the_number_of_batches_is_public_even_when_all_are_empty",
    ),
    _mutant(
        "chances-ignored-rate-up", "records stay with chances scaled to mean 1, above the charged rate",
        ("rate * pool.chances", "np.minimum(1, rate * pool.chances / pool.chances.mean())"),
        MATCH + "test_every_batch_draws_by_fresh_coins_and_fixed_pools_are_caught",
    ),
    _mutant(
        "ranks-share-coins", "every process tosses the same coins, so records come in groups",
        ('streams.numpy("batches", rank=self.world.rank)', 'streams.numpy("batches")'),
        LAW + "test_every_record_of_every_rank_has_one_independent_coin_in_every_step",
    ),
    _mutant(
        "ranks-repeat-records", "every process holds all records: each has several coins and counts several times",
        ("start, stop = share.bounds(len(self.store))", "start, stop = 0, len(self.store)"),
        LAW + "test_every_record_of_every_rank_has_one_independent_coin_in_every_step",
        RECORD_SET + "test_every_record_lies_in_one_part",
    ),
    _mutant(
        "ranks-read-each-others-records", "of a set that was handed over every process reads all records",
        ("        return self.source.read(rows + self.start)\n",
         "        x, y = self.source.read(np.arange(len(self.source)))\n"
         "        return x[rows + self.start], y[rows + self.start]\n"),
        RECORD_SET + "test_of_a_set_that_was_handed_over_each_rank_reads_its_own_records",
    ),
    _mutant(
        "table-range-off-by-one", "ranges of a CSV file overlap by a line",
        ("int(ends[min(last, lines) - 1])]", "int(ends[min(last, lines - 1)])]"),
        RECORD_SET + "test_ranks_read_their_ranges_of_a_table_and_together_all_of_it",
    ),
    _mutant(
        "selection-noise-by-every-rank", "each process adds noise to what a selection releases",
        ("finite_sum(total)\n        if self._world.main:", "finite_sum(total)\n        if True:"),
        LAW + "test_noise_is_added_once_to_the_sum_of_all_parts",
    ),
    _mutant(
        "parts-not-added-up", "what is released of a selection is the noisy sum over rank 0's records",
        ("            )\n        return self._world.total(total)", "            )\n        return total"),
        LAW + "test_noise_is_added_once_to_the_sum_of_all_parts",
    ),
    _mutant(
        "fit-counts-records-twice", "what is fitted on D before training is summed over all records in every process",
        ('    raise MechanismError(\n            "the source hands out sets',
         '    if False:\n            raise MechanismError(\n            "the source hands out sets'),
        RECORD_SET + "test_a_sum_over_records_that_other_ranks_hold_too_is_refused",
    ),
    _mutant(
        "parts-overlap", "processes with different configs cut the records differently and hold some of them twice",
        ('        world.refuse_disagreement(facts, "config or data", "give all of them the same files")\n'
         "        _refuse_overlap(part, plan, world)\n", ""),
        LAW + "test_processes_that_were_given_different_configs_are_refused",
    ),
    _mutant(
        "branches-of-their-own", "a process goes on in another branch than rank 0, at a rate that was not charged",
        ("if self.share(value) != value:", "if self.share(value) != value and self.size == 1:"),
        LAW + "test_ranks_that_would_take_different_branches_are_stopped",
    ),
    _mutant(
        "weights-and-chances-above-one", "a pool may hold weights and chances above 1",
        ("if not ((values >= 0) & (values <= 1)).all():", "if not (values >= 0).all():"),
        MATCH + "test_no_chance_or_weight_lifts_a_record_above_what_is_charged",
    ),
    _mutant(
        "duplicates-in-pool", "a record may be in the pool twice",
        ("np.unique(indices).size < indices.size", "False"),
        KILLERS + "test_a_pool_holds_each_record_once",
    ),
    _mutant(
        "tilt-chances-above-one", "match keeps records with chances above 1",
        ("return np.exp(np.minimum(0.0, self.log_fill + self.strength * scores))",
         "return np.exp(self.log_fill + self.strength * scores)"),
        MATCH + "test_rates_and_weights_are_probabilities",
    ),
    _mutant(
        "rate-uncharged", "match is charged B/n although it draws at c·B/n",
        ("rate=pace * epoch.rate, count=epoch.steps)",
         "rate=min(epoch.rate, self.shape.batch_size / self.shape.n), count=epoch.steps)"),
        PLAN + "test_step_events_are_those_of_the_schedule",
    ),
    _mutant(
        "amplification-for-everyone", "a secret subset is claimed for strategies that draw none",
        ('if subset.secret_subset and (strategy != "RandomDP" or subset.kappa):', "if False:"),
        PLAN + "test_amplification_is_for_one_uniform_subset_only",
    ),
    _mutant(
        "secret-subset-of-exactly-k", "amplification by coins is claimed for a subset of fixed size",
        ("self.current = Pool(np.flatnonzero(coins.random(plan.shape.n) < plan.inclusion))",
         "self.current = Pool(coins.choice(plan.shape.n, size=plan.shape.k, replace=False))"),
        KILLERS + "test_a_secret_subset_is_drawn_by_coins",
    ),
]  # fmt: skip

_COUNT = "        self._count(release, 1)\n        total = finite_sum(total)\n"
_SELECTION = [
    _mutant(
        "factor-two-missing", "Δ = C_e·C_v although every score moves",
        ("return unit if self.frozen else 2 * unit", "return unit"),
        GLISTER + "test_score_sensitivity_over_zero_out_pairs",
    ),
    _mutant(
        "half-missing-in-picks", "P ∝ exp(ε₀u/Δ) instead of exp(ε₀u/2Δ)",
        ("(epsilon0 / (2.0 * sensitivity))", "(epsilon0 / sensitivity)"),
        PICKS + "test_pick_probabilities_are_the_law",
        PICKS + "test_law_of_up_to_three_picks",
    ),
    _mutant(
        "every-proposal-accepted", "proposed records are picked whatever their score",
        ("rng.random(len(proposed)) < chances", "rng.random(len(proposed)) < 1"),
        PICKS + "test_proposed_picks_have_the_same_law",
    ),
    _mutant(
        "earlier-rounds-forgotten", "a second round of proposals forgets what the first has picked",
        ("np.concatenate([picked, proposed[rng.random(len(proposed)) < chances]])",
         "proposed[rng.random(len(proposed)) < chances]"),
        PICKS + "test_picks_of_many_rounds_of_proposals_have_the_same_law",
    ),
    _mutant(
        "infinity-is-the-best", "scores are clipped before those that are not finite become null",
        ("np.clip(_finite_or_zero(np.asarray(scores, dtype=np.float64)), -bound, bound)",
         "_finite_or_zero(np.clip(np.asarray(scores, dtype=np.float64), -bound, bound))"),
        PICKS + "test_a_score_that_is_not_finite_is_that_of_a_null_record_for_proposals_too",
    ),
    _mutant(
        "infinity-is-the-best-gain", "a selection clips gains before those that are not finite become null",
        ("bounded_scores(scores.double().cpu().numpy(), bound)",
         "np.clip(scores.double().cpu().numpy(), -bound, bound)"),
        GLISTER + "test_a_gain_that_is_not_finite_is_that_of_a_null_record",
    ),
    _mutant(
        "scores-read-by-scores", "without a surplus of proposals the scores decide how many of them are read",
        ("math.ceil((missing + t) / p)", "math.ceil((missing + 16) / p)"),
        PICKS + "test_a_second_round_is_as_rare_as_promised",
    ),
    _mutant(
        "negative-draws", "a counter takes negative numbers of draws, which add some, and NaN, which never ends",
        ("if not 0 <= draws <= self._left[release.name]:", "if draws > self._left[release.name]:"),
        "noise/test_few_picks.py::test_the_counter_itself_takes_no_number_that_would_raise_it",
    ),
    _mutant(
        "sizes-checked-too-late", "picks are counted before anybody asks whether they are a number",
        ("        check_size(size, count)\n", ""),
        "noise/test_few_picks.py::test_a_draw_that_is_refused_adds_none",
    ),
    _mutant(
        "proposals-not-charged", "picks by proposals cost nothing",
        ("        release, epsilon0 = self._charged_picks(name, size)\n        return proposed_picks(\n",
         "        release, epsilon0 = self._get(name), self._get(name).epsilon0\n        return proposed_picks(\n"),
        "noise/test_few_picks.py::test_a_charge_comes_before_the_first_score_and_picks_are_counted",
    ),
    _mutant(
        "freeze-drawn-twice", "one freeze of the scores is drawn from again and again",
        ("        self._spent = True\n", ""),
        PICKS + "test_a_freeze_draws_once",
    ),
    _mutant(
        "freeze-bound-for-moving-scores", "picks by moving scores are charged as one freeze",
        ('if composition == "freeze" and not self.frozen:', "if False:"),
        PLAN + "test_refusals_name_key_value_and_fix",
    ),
    _mutant(
        "per-class-without-public-labels", "class quotas although labels are private",
        ('if self.selection_type == "PerClass" and not privacy.labels_public:', "if False:"),
        PLAN + "test_selection_types_without_proof_are_refused",
    ),
    _mutant(
        "greedy-steps-on-v-charged-once", "RGreedy reads V r times and pays once",
        ("noise, privacy, self.freezes(sizes.k))", "noise, privacy)"),
        GLISTER + "test_validation_noise_is_drawn_as_often_as_it_is_charged",
    ),
    _mutant(
        "scores-unbounded", "scores beyond [−1, 1], on which every sensitivity rests",
        ("[:, 0].clamp(-1.0, 1.0)", "[:, 0]"),
        THRESHOLD + "test_scores_are_finite_and_bounded_whatever_the_function_returns",
    ),
    _mutant(
        "tail-sensitivity-one", "noise on factored tail counts for sensitivity 1, not the column's norm",
        ("float(np.linalg.norm(root_column(bins)))", "1.0"),
        QUANTILE + "test_one_record_moves_the_release_by_at_most_the_stated_sensitivity",
    ),
    _mutant(
        "null-record-has-a-cell", "a record without a score is counted in a cell",
        ("counted = np.isfinite(scores)", "counted = np.ones(len(scores), dtype=bool)"),
        QUANTILE + "test_mutant_null_record_with_a_cell_is_caught",
        REPLAY + "test_a_null_record_adds_nothing_to_tail_counts",
    ),
    _mutant(
        "null-record-scores", "a score is computed where there is no record",
        ("    return keep_rows(scores, gradients.present)", "    return scores"),
        NULL + "test_a_null_record_has_neither_gradient_nor_prediction_nor_class_nor_cell",
    ),
    _mutant(
        "match-null-has-a-gradient", "match sums a gradient of the label alone for a record that is not there",
        ("    a = inputs[:, :1] * a", "    a = 1.0 * a"),
        NULL + "test_a_null_record_has_neither_gradient_nor_prediction_nor_class_nor_cell",
    ),
    _mutant(
        "match-not-normalised", "what match sums up is not brought to length 1",
        ("    unit = h / h.norm(dim=1, keepdim=True).clamp_min(1e-12)\n", "    unit = h\n"),
        MATCH + "test_a_record_s_gradient_has_length_at_most_one",
    ),
    _mutant(
        "threshold-sums-not-normalised", "the sums of threshold are of gradients of any length",
        ("return gradients.r * ((1 - 1e-6) / (gradients.r.norm(dim=1, keepdim=True) + 0.01)), gradients.a",
         "return gradients.r, gradients.a"),
        THRESHOLD + "test_sums_of_unit_gradients_have_sensitivity_one",
    ),
    _mutant(
        "validation-sum-not-clipped", "records of V are summed up as they are",
        ("self._weighted_sum(finite_or_zero(self.r * self.factors(clip)[:, None]).double())",
         "self._weighted_sum(finite_or_zero(self.r).double())"),
        REPLAY + "test_what_is_released_on_v_moves_by_at_most_its_sensitivity[exponential]",
        GLISTER + "test_scores_and_sums_equal_those_of_explicit_gradients",
    ),
    _mutant(
        "top-k-ranks-exact-scores", "top_k draws its noise and then ranks the exact scores",
        ("        return releases.gaussian(_SCORES, scored.scores(v))\n",
         "        releases.gaussian(_SCORES, scored.scores(v))\n        return scored.scores(v)\n"),
        REPLAY + "test_equal_releases_give_everyone_else_the_same_place[top_k]",
    ),
    _mutant(
        "exact-quantile", "the threshold is an exact quantile; the paid one is thrown away",
        ("return np.array([threshold_for(t, target * share) for t, share in zip(tails, shares, strict=True)])",
         "return np.array([np.nanquantile(scores, 1 - min(1.0, target * s / len(scores))) for s in shares])"),
        REPLAY + "test_equal_releases_give_everyone_else_the_same_place[threshold]",
    ),
    _mutant(
        "match-weights-by-the-others", "match weighs records by how they compare with the others",
        ("weights=tilt.weights(scores),", "weights=np.argsort(np.argsort(scores)) / len(scores),"),
        REPLAY + "test_equal_releases_give_everyone_else_the_same_place[match]",
    ),
    _mutant(
        "match-fills-by-exact-scores", "how many records stay is set from exact scores, not from the noisy counts",
        ("counts, places = score_histogram(tails, noise=noise)",
         "counts, places = np.ones(n), self.scores(direction)"),
        REPLAY + "test_equal_releases_give_everyone_else_the_same_place[match]",
    ),
    _mutant(
        "align-counts-null-records", "a record whose prediction is not finite has a cell in align's table",
        ("known = torch.isfinite(seen.logits).all(dim=1).cpu().numpy() & (labels >= 0)", "known = (labels >= 0)"),
        REPLAY + "test_what_is_released_on_d_moves_by_at_most_its_sensitivity[align]",
    ),
    _mutant(
        "level-without-its-clip", "group_rates draws a class more often and leaves its clip norm as it is",
        ("weights = (sigmas.min() / sigmas)[pool.levels] *", "weights = np.ones(len(pool)) *"),
        LABELS + "test_every_record_is_drawn_and_weighted_as_its_branch_allows",
    ),
    _mutant(
        "levels-may-change", "a record takes one branch in some steps and another in others",
        ("self.branch is not None or not same:", "self.branch is not None:"),
        LABELS + "test_a_record_does_not_change_its_branch",
    ),
    _mutant(
        "align-by-the-exact-table", "align releases a noisy table and sets chances by the exact one",
        ("            self._look(on_d, on_v, sigma_d, sigma_v, branches=not first)\n",
         "            exact = self.context.training.count(kinds, self.context.num_classes, groups)\n"
         "            self._look(exact, on_v, sigma_d, sigma_v, branches=not first)\n"),
        REPLAY + "test_equal_releases_give_everyone_else_the_same_place[align]",
    ),
    _mutant(
        "likelihood-by-the-exact-table", "the likelihood of D's labels is learnt from the exact table",
        ("        return self._pool(kinds, predicted)\n\n    def state",
         "        if groups > 1:\n"
         "            exact = self.context.training.count(kinds, self.context.num_classes, groups)\n"
         "            self._given = of_tables(exact, on_v, sigma_d, sigma_v)\n"
         "        return self._pool(kinds, predicted)\n\n    def state"),
        REPLAY + "test_equal_releases_give_everyone_else_the_same_place[align]",
    ),
    _mutant(
        "sampling-errors-are-moves", "what V's few records show by chance counts as moved labels",
        ("    return np.sqrt(sigma_d**2 + (sigma_v * rows_d / rows_v) ** 2 + sampling)\n",
         "    return np.full_like(sampling, 2 / 3 * sigma_d)\n"),
        LIKELIHOOD + "test_what_sampling_explains_is_no_move",
    ),
    _mutant(
        "random-labels-are-moves", "labels drawn at random are taken for labels moved to another class",
        ("    least = _NOISY * sigma_d if", "    least = _VISIBLE * _deviation(on_d, on_v, sigma_d, sigma_v) if"),
        LIKELIHOOD + "test_labels_drawn_at_random_are_told_from_moved_ones",
    ),
    _mutant(
        "chance-is-a-difference", "a third of all worlds in which nothing differs count as shifted",
        (").sum()) - chance) / max(", ").sum())) / max("),
        ALIGN + "test_shares_that_differ_by_chance_alone_have_ratio_one_mostly",
    ),
    _mutant(
        "batch-larger-than-its-pool", "a batch may be larger than the subset that it is drawn from: a rate above 1",
        ("    if batch_size > pool:\n", "    if batch_size > n:\n"),
        PLAN + "test_a_batch_may_exceed_k_where_steps_draw_from_all_records",
    ),
    _mutant(
        "likelihood-normalised-over-the-batch", "a record's loss depends on the other records of its batch",
        ("likelihood = (shown - seen) * (targets >= 0)", "likelihood = (shown - seen.mean()) * (targets >= 0)"),
        LIKELIHOOD + "test_a_record_changes_no_other_records_loss",
    ),
    _mutant(
        "forward-by-the-exact-table", "the forward correction is learnt from the exact table",
        ("            self._labels_of = label_given_class(on_d, on_v, *noises)\n",
         "            exact = self._table(self.context.training, weights)\n"
         "            self._labels_of = label_given_class(exact, on_v, *noises)\n"),
        REPLAY + "test_equal_releases_give_everyone_else_the_same_place[forward_correction]",
    ),
    _mutant(
        "likelihood-forgotten-on-resume", "a resumed run trains with the plain loss until the next look",
        ("        self._given = state[\"likelihood\"].numpy() if len(state[\"likelihood\"]) else None\n",
         "        self._given = None\n"),
        LIKELIHOOD + "test_a_resumed_run_goes_on_with_the_same_likelihood",
    ),
    _mutant(
        "draws-stop-with-the-data", "threshold stops early when its exact pool is full",
        ("            taken |= new\n", "            taken |= new\n            if taken.sum() >= self.k:\n"
         "                break\n"),
        REPLAY + "test_draws_charges_and_order_do_not_depend_on_a_record[threshold]",
    ),
    _mutant(
        "v-uncharged", "releases on V get noise and no charge",
        (_COUNT, _COUNT.replace("        self._count(release, 1)\n",
         '        if release.dataset == "D":\n            self._count(release, 1)\n')),
        MATCH + "test_every_release_is_charged_once_and_before_it_is_drawn",
    ),
    _mutant(
        "v-exact-for-nothing", "a private V may be read without an event",
        ("if release.event is None and not free:", "if False:"),
        MATCH + "test_a_private_validation_set_without_noise_is_refused",
    ),
    _mutant(
        "releases-not-counted-down", "a release is charged once and drawn at will",
        ("        self._left[release.name] -= draws\n", ""),
        KILLERS + "test_a_release_is_drawn_as_often_as_it_was_charged",
    ),
    _mutant(
        "releases-charged-after-drawing", "noise is drawn first: a crash regains the budget",
        (_COUNT, "        total = finite_sum(total)\n"),
        ("            )\n        return self._world.total(total)",
         "            )\n        self._count(release, 1)\n        return self._world.total(total)"),
        MATCH + "test_every_release_is_charged_once_and_before_it_is_drawn",
    ),
]  # fmt: skip

_ACCOUNTING = [
    _mutant(
        "delta-spent-twice", "selection and training both spend the whole δ in basic composition",
        ("return self.delta * (1 - self.split if phase == SELECTION else self.split)", "return self.delta"),
        PLAN + "test_basic_composition_conserves_epsilon_and_delta",
    ),
    _mutant(
        "v-left-out-of-the-total", "the ε of a run is D's, although V's is larger",
        ("return max(bound.epsilon for bound in self.of_sets.values())", "return self.training_data.epsilon"),
        KILLERS + "test_the_total_is_the_larger_of_d_and_v",
    ),
    _mutant(
        "selection-left-out-of-the-total", "joint composition counts training only",
        ("total_d = self._bound([e.event for e in on_d], self.delta, quick=quick)",
         "total_d = self._bound([e.event for e in on_d if e.phase != SELECTION], self.delta, quick=quick)"),
        PLAN + "test_joint_composition_meets_the_target_in_total",
    ),
    _mutant(
        "delta-above-one-over-n", "a δ at which one record may be published passes",
        ("    if privacy.delta >= 1 / largest:\n", "    if privacy.delta >= 1:\n"),
        PLAN + "test_refusals_name_key_value_and_fix",
    ),
    _mutant(
        "calibration-above-target", "calibration accepts half a per cent too much",
        ("<= epsilon <= target:", "<= epsilon <= target / _LOWEST_SHARE:"),
        "accounting/test_calibration.py::test_calibration_lands_within_half_a_percent_below",
    ),
    _mutant(
        "noise-cache-believed", "noise from a file on disk is used without asking what it costs",
        ("    found = calibrate(lambda value: cost_of(value, accountant), target, start=first, rising=rising)\n",
         "    if noise_cache.remembered(name) == first:\n        return first\n"
         "    found = calibrate(lambda value: cost_of(value, accountant), target, start=first, rising=rising)\n"),
        "planning/test_noise_cache.py::test_a_forged_cache_never_weakens_the_promise",
    ),
    _mutant(
        "cut-tail-forgotten", "a loss of infinity is not raised to the power of a composition",
        ("infinity = _TAIL - math.expm1(count * math.log1p(-pmf._infinity_mass))", "infinity = pmf._infinity_mass"),
        "accounting/test_pld.py::test_a_loss_of_infinity_adds_up",
    ),
    _mutant(
        "prv-one-direction", "prv-accountant's direction alone, in which the record is present",
        ("return max(0.0, upper, _pld(events, delta))", "return max(0.0, upper)"),
        KILLERS + "test_prv_covers_both_directions",
        "accounting/test_composition.py::test_prv_agrees_with_pld_and_lies_below_rdp",
    ),
    _mutant(
        "group-of-one", "several records of a person are charged as one",
        ("mixture_pld(event.sigma, event.rate, size, step)", "mixture_pld(event.sigma, event.rate, 1, step)"),
        "accounting/test_group.py::test_a_gaussian_release_has_k_times_the_sensitivity",
    ),
    _mutant(
        "group-one-direction", "the loss of an absent group is taken for that of a present one",
        ("mixture.present(step), mixture.absent(step)", "mixture.present(step), mixture.present(step)"),
        "accounting/test_group.py::test_the_profile_of_a_mixture_is_exact",
    ),
    _mutant(
        "group-in-d-alone", "a person's records are looked for in D alone",
        ("[way for way in ways if sum(way) == size]", "[way for way in ways if way[0] == size]"),
        "accounting/test_group.py::test_the_worst_way_to_lie_in_d_and_v_counts",
    ),
    _mutant(
        "pld-one-direction", "the loss of an absent record is taken for that of a present one",
        ("_connect_dots(sigma, rate, step, AdjacencyType.ADD)", "present"),
        "accounting/test_poisson_gaussian.py::test_the_loss_distribution_is_dp_accountings",
    ),
    _mutant(
        "rdp-with-twice-the-variance", "Rényi divergences at high orders are those of larger noise",
        ("(j * j - j) / (2 * sigma**2)", "(j * j - j) / (4 * sigma**2)"),
        "accounting/test_poisson_gaussian.py::test_all_terms_at_once_are_what_they_are_one_by_one",
    ),
    _mutant(
        "quote-reaches-further", "a quotation mark that is not closed swallows the texts after it",
        ("for fields in (_fields(line, separator) for line in lines):",
         "for fields in csv.reader(lines, delimiter=separator):"),
        "data/test_texts.py::test_a_line_is_a_record_whatever_is_in_it",
    ),
    _mutant(
        "gumbel-one-direction", "a freeze is charged for scores that rise, not for those that fall",
        ("        return max(up, down)\n", "        return up\n"),
        KILLERS + "test_a_freeze_pays_for_both_directions",
    ),
    _mutant(
        "allowance-unchecked", "the ledger takes more events than were planned",
        ("            self._refuse_beyond_allowance(entry)\n", "            pass\n"),
        LEDGER + "test_the_ledger_refuses_more_than_the_plan",
    ),
    _mutant(
        "ledger-forgets-on-resume", "what earlier attempts charged is not counted",
        ("                ledger._count(entry)\n", ""),
        LEDGER + "test_memory_and_disk_agree_with_a_plain_list",
    ),
    _mutant(
        "ledger-not-bound-to-plan", "a ledger is continued under another budget",
        ("if fingerprint is not None and self.fingerprint != fingerprint:", "if False:"),
        LEDGER + "test_a_ledger_is_bound_to_its_plan_and_its_data",
    ),
    _mutant(
        "ledger-not-bound-to-data", "a ledger is continued on another split",
        ("if binding is not None and self.binding != binding:", "if False:"),
        LEDGER + "test_a_ledger_is_bound_to_its_plan_and_its_data",
    ),
    _mutant(
        "resume-on-any-data", "a run is resumed on another split: records of V become records of D",
        ("Ledger.load(path, allowance, fingerprint, binding, witness)",
         "Ledger.load(path, allowance, fingerprint, None, witness)"),
        KILLERS + "test_a_run_is_not_resumed_under_another_plan_or_on_other_data",
    ),
    _mutant(
        "resume-on-a-changed-file", "owners' names are changed before a resume: people of D are dealt to the test set",
        ("    elif noted != found:\n", "    elif len(noted) != len(found):\n"),
        "training/test_provenance.py::test_a_run_is_not_resumed_on_a_file_that_was_changed",
    ),
    _mutant(
        "split-not-in-binding", "the digest of the data knows how many rows are in D, not which",
        ('return ["rows", len(rows), digest_of_rows(rows)]', 'return ["rows", len(rows)]'),
        KILLERS + "test_the_binding_tells_splits_apart",
    ),
    _mutant(
        "account-not-asked", "a run with an account reserves nothing in it",
        ("    if plan.privacy.account is None or plan.noiseless:", "    if True:"),
        KILLERS + "test_a_run_beyond_its_account_is_refused_before_data_is_read",
    ),
    _mutant(
        "checkpoint-of-another-ledger", "weights that another ledger paid for are continued",
        ('if state.get("ledger") != ledger.id:', "if False:"),
        KILLERS + "test_a_checkpoint_of_another_ledger_is_refused",
    ),
    _mutant(
        "epoch-charged-after-its-steps", "an epoch is charged when it is over: a crash regains the budget",
        ("                self._ledger.charge(entry.dataset, entry.phase, entry.event)\n",
         "                self._owed = entry.dataset, entry.phase, entry.event\n"),
        ("            self._inside = False\n\n    def __call__",
         "            self._inside = False\n            if not self._left:\n"
         "                self._ledger.charge(*self._owed)\n\n    def __call__"),
        KILLERS + "test_steps_are_charged_before_the_first_and_no_more_are_taken",
    ),
    _mutant(
        "cheapest-branch-charged", "of branches that a release chooses from the first is paid",
        ("(PoissonGaussian(b.sigma, pace * b.rate, steps),) for b in self.branches)",
         "(PoissonGaussian(b.sigma, pace * b.rate, steps),) for b in self.branches[:1])"),
        KILLERS + "test_every_branch_is_paid_for",
    ),
    _mutant(
        "branch-without-its-noise", "a branch is drawn at its rate, with the noise of another",
        ("return pool, plan.branches[chosen].rate, plan.branches[chosen].sigma",
         "return pool, plan.branches[chosen].rate, plan.sigma"),
        KILLERS + "test_a_branch_has_its_own_rate_and_noise",
    ),
    _mutant(
        "branch-may-change", "steps that were charged together are taken in several branches",
        ("elif self.branch != chosen:", "elif False:"),
        KILLERS + "test_a_branch_has_its_own_rate_and_noise",
    ),
    _mutant(
        "released-values-edited", "what a selection released can be changed on disk before a run resumes",
        ("if _digest(content) != self._ledger.selected[name]:", "if False:"),
        KILLERS + "test_released_values_that_were_changed_are_refused",
    ),
    _mutant(
        "prepaid-twice", "one charge of an interrupted selection pays for several releases",
        ("            prepaid.remove(entry)\n", "            pass\n"),
        KILLERS + "test_what_an_interrupted_selection_paid_counts_once",
    ),
    _mutant(
        "steps-not-counted-down", "more steps get noise than were charged",
        ("        self._left -= 1\n", ""),
        KILLERS + "test_steps_are_charged_before_the_first_and_no_more_are_taken",
    ),
    _mutant(
        "noise-outside-of-steps", "noise is handed out although no step was charged",
        ("        if not self._inside:\n            raise MechanismError(\"noise of",
         "        if False:\n            raise MechanismError(\"noise of"),
        KILLERS + "test_noise_is_had_inside_a_charged_step_only",
    ),
    _mutant(
        "hash-chain-unchecked", "lines of the ledger can be edited or removed",
        ("if link != _link(chain, body) or line !=", "if line !="),
        JOURNAL + "test_a_file_that_was_edited_anywhere_is_refused",
    ),
    _mutant(
        "charge-not-flushed", "a charge is in the cache only when its noise is drawn",
        ("            _write_whole(self._descriptor, line, self._size)\n            os.fsync(self._descriptor)\n",
         "            _write_whole(self._descriptor, line, self._size)\n"),
        JOURNAL + "test_a_failed_append_leaves_the_journal_as_it_was_and_ends_it",
    ),
    _mutant(
        "account-refuses-nothing", "runs are admitted beyond the total of the account",
        ("        if share > 1:\n            raise BudgetExceededError(",
         "        if False:\n            raise BudgetExceededError("),
        "accounting/test_account.py::test_runs_add_up_and_the_one_too_many_is_refused_with_the_numbers",
    ),
    _mutant(
        "filter-spends-delta-thrice", "each order of the Rényi filter spends the whole δ",
        ("delta = self.delta / len(self.orders)", "delta = self.delta"),
        KILLERS + "test_the_orders_of_the_filter_share_delta",
    ),
    _mutant(
        "account-equal-once", "an account counts equal plans of several runs once",
        ("        equal.setdefault((holding.split, id(holding.entries)), []).append(holding)\n",
         "        equal[holding.split, id(holding.entries)] = [holding]\n"),
        ACCOUNT + "test_equal_plans_are_added_up_as_single_ones_are",
    ),
    _mutant(
        "account-forgets-v", "of runs that read D and V an account counts one side",
        ("    if len(sides) > 1:\n        return [BranchMaximum(", "    if False:\n        return [BranchMaximum("),
        KILLERS + "test_an_account_counts_the_side_that_costs_more",
    ),
    _mutant(
        "filter-forgets-v", "of runs that read D and V the filter of an account counts the cheaper side",
        ("total[place] += max(math.fsum", "total[place] += min(math.fsum"),
        KILLERS + "test_an_account_counts_the_side_that_costs_more",
    ),
    _mutant(
        "filter-one-split", "runs whose splits are unknown are added up as if they had one",
        ("splits.setdefault(split or number, {})", "splits.setdefault(split, {})"),
        COSTS + "test_what_is_remembered_is_what_the_events_cost",
    ),
    _mutant(
        "costs-not-checked", "what is remembered of the costs of plans is believed without a sample",
        ("_CHECKED = 16 ", "_CHECKED = 0 "),
        COSTS + "test_lower_costs_under_a_digest_that_fits_are_noticed",
    ),
    _mutant(
        "costs-of-any-code", "costs of plans that other code has computed are believed",
        ('if content.pop("bound_to") == self._bound_to:', 'if content.pop("bound_to"):'),
        COSTS + "test_what_other_code_or_another_total_has_written_is_computed_anew",
    ),
    _mutant(
        "costs-of-any-kind", "costs of events whose code is not ours are remembered",
        (" or _is_ours(plan)}", " or True}"),
        COSTS + "test_costs_of_events_that_others_registered_are_not_remembered",
    ),
]  # fmt: skip

_LEAKS = [
    _mutant(
        "indices-logged", "the log shows who was selected",
        ("            self.current = self.selections.select(self.context.released_weights(), str(epoch))\n",
         "            self.current = self.selections.select(self.context.released_weights(), str(epoch))\n"
         '            self.context.logger.debug("Subset %s", self.current.indices.tolist())\n'),
        KILLERS + "test_no_log_shows_who_was_selected",
    ),
    _mutant(
        "secret-pool-published", "a pool that nobody paid for can be published",
        ("if self.plan is None or self.plan.secret_pool:\n            raise MechanismError(",
         "if self.plan is None:\n            raise MechanismError("),
        KILLERS + "test_a_secret_pool_is_neither_published_nor_stored",
    ),
    _mutant(
        "secret-pool-in-checkpoint", "a checkpoint of threshold holds the members of its pool",
        ('            "directions": [v for v, _ in self.released],\n',
         '            "directions": [v for v, _ in self.released],\n            "members": torch.from_numpy('
         "self.membership(self.released, np.zeros(self.n, dtype=bool))),\n"),
        KILLERS + "test_a_secret_pool_is_neither_published_nor_stored",
    ),
    _mutant(
        "secret-subset-in-checkpoint", "a checkpoint of RandomDP holds its secret subset",
        ("        if self.context.plan.subset.secret_subset:\n            return None\n", ""),
        KILLERS + "test_a_secret_subset_is_not_stored",
    ),
    _mutant(
        "exact-metrics-logged", "exact losses of private records are logged",
        ("when the run ends.\")\n    return kept\n", "when the run ends.\")\n    return list(wanted)\n"),
        KILLERS + "test_exact_metrics_of_private_records_are_not_logged",
    ),
    _mutant(
        "private-name-for-anyone", "a strategy that is not private registers under a private name",
        ("if not private and (_promises_privacy(name) or (known is not None and known.private)):", "if False:"),
        "training/test_strategies.py::test_a_private_name_is_never_given_to_a_strategy_that_is_not",
    ),
    _mutant(
        "exact-seconds", "times to the microsecond although they follow the size of a secret pool",
        ("return float(round(seconds)) if self.secret_pool else seconds", "return seconds"),
        KILLERS + "test_a_secret_pool_shows_whole_seconds_only",
    ),
    _mutant(
        "exact-time-of-events", "TensorBoard's events tell the time of an epoch to the microsecond",
        ("now = float(int(time.time()))", "now = time.time()"),
        "training/test_tensorboard.py::test_it_is_given_what_the_table_of_metrics_holds",
    ),
    _mutant(
        "statement-of-another-run", "the statement of an earlier private run stays beside a model without privacy",
        ("            (folder / name).unlink(missing_ok=True)\n", "            pass\n"),
        "runs/test_run.py::test_a_statement_never_stays_beside_another_run_s_model",
    ),
    _mutant(
        "statement-beside-the-next-checkpoint", "a statement stays beside checkpoints of a run without privacy",
        ("        withdraw(folders)\n", "        pass\n"),
        TRAINER + "test_a_run_without_privacy_has_no_statement_and_first_withdraws_an_earlier_one",
    ),
    _mutant(
        "labels-by-row", "a published subset of a folder tells labels by the order of its files",
        ('_SORTED_BY_CLASS = {"folder", "tinyimagenet"}', "_SORTED_BY_CLASS = set()"),
        "runs/test_run.py::test_a_subset_of_a_folder_by_class_is_not_published",
    ),
    _mutant(
        "labels-by-class-folder", "rows of a set that was stored from class folders are published: they tell labels",
        ("        return BY_CLASS in stored.files\n", "        return False\n"),
        "data/test_class_folders.py::test_rows_in_the_order_of_the_classes_are_not_published",
    ),
    _mutant(
        "labels-by-imbalance", "published rows tell labels where D is what an imbalance has left of a published set",
        ('    if feature_of(section) in ("classimb", "mildimb"):\n        return "feature"\n', ""),
        "runs/test_run.py::test_rows_of_records_that_were_kept_for_what_they_hold_are_not_published",
    ),
    _mutant(
        "values-by-cut", "published rows tell a column of records where D was cut by it",
        ('("cut_classes", "cut_column")', '("cut_classes",)'),
        "runs/test_run.py::test_rows_of_records_that_were_kept_for_what_they_hold_are_not_published",
    ),
    _mutant(
        "telling-rows-published", "whether rows tell labels is not asked before work starts",
        ('        refuse_telling_rows(run.section("dataset"))\n', "        pass\n"),
        "runs/test_run.py::test_rows_of_records_that_were_kept_for_what_they_hold_are_not_published",
    ),
    _mutant(
        "telling-rows-on-request", "a trainer tells rows that tell labels",
        ("    refuse_telling_rows(section)\n", ""),
        "runs/test_run.py::test_a_trainer_does_not_tell_such_rows_either",
    ),
]  # fmt: skip

_TABLES = [
    _mutant(
        "own-rows-in-binding", "whatever a user's dataset calls rows goes into the digest of the data",
        ('if built and hasattr(dataset, "rows"):', 'if hasattr(dataset, "rows"):'),
        "data/test_base.py::test_a_ledger_is_bound_to_the_rows_and_not_to_a_folder",
    ),
    _mutant(
        "source-unguarded", "records of the user's own with an impossible label take part",
        ('own = find_source(run.config["dataset"].get("name")) is not None', "own = False"),
        "data/test_base.py::test_a_source_trains_and_its_private_sets_are_guarded",
    ),
    _mutant(
        "bad-lines-dropped", "a line with another number of fields is no record: n depends on it",
        ("delimiter, mark) + b\"\\n\" for line in lines)",
         "delimiter, mark) + b\"\\n\" for line in lines if line.count(mark) == width - 1)"),
        TABLE + "test_a_bad_line_is_a_record_without_a_label_and_touches_no_other",
    ),
    _mutant(
        "a-run-reads-quoted-line-breaks", "a quotation mark that is not closed reaches into the records after it",
        ("kind = QuotedCsv if quoted else _Csv", "kind = QuotedCsv"),
        TABLE + "test_a_bad_line_is_a_record_without_a_label_and_touches_no_other",
    ),
    _mutant(
        "advice-only-where-it-helps", "a run names `data import` if the file holds quotation marks",
        ("lines = any(Path(path).suffix in CSV_SUFFIXES for path in paths if path is not None)",
         "lines = any(b'\"' in Path(path).read_bytes() for path in paths if path is not None)"),
        OWNER + "test_what_a_run_says_about_reading_depends_on_no_file",
        OWNER + "test_a_run_names_both_commands_whatever_the_file_holds",
    ),
    _mutant(
        "errors-of-private-sets", "a regression's errors on the training set are measured, which nobody may see",
        ("if set(names) & set(self.shown):", 'if set(names) & set(self.shown) or prefix == "trn":'),
        REGRESSION + "test_errors_of_private_sets_are_not_measured",
    ),
    _mutant(
        "one-bad-number-spoils-all", "a value that is no number makes those of other records missing",
        ("    return _in_groups(encoded.dictionary, kind).take(encoded.indices)\n",
         "    return pa.nulls(len(encoded), kind)\n"),
        TABLE + "test_a_record_becomes_the_same_alone_and_among_others",
    ),
    _mutant(
        "parser-quoted", "what a parser says about a damaged file is shown as the cause",
        ("        except Exception:\n            schema = None\n",
         "        except Exception as error:\n            raise _damaged(path) from error\n"),
        TABLE + "test_a_damaged_file_says_nothing_about_what_is_in_it",
    ),
    _mutant(
        "header-words-shown", "an error shows words of the first line, which may be a record",
        ("places = [str(place) for place, column in", "places = [column for place, column in"),
        TABLE + "test_columns_must_be_those_of_the_schema",
    ),
    _mutant(
        "compact-copy-for-all", "everybody on the machine can read the copy of a table",
        ("os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)",
         "os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)"),
        TABLE + "test_the_compact_copy_is_for_its_owner_and_made_once",
    ),
    _mutant(
        "scales-sensitivity", "the squares and counts of columns are not in the sensitivity",
        ("    return math.sqrt(3 * columns)\n", "    return math.sqrt(columns)\n"),
        SCALING + "test_one_record_moves_the_sum_by_no_more_than_the_sensitivity",
    ),
    _mutant(
        "scales-unclamped", "a stored number out of range moves the sum of scales further than is charged",
        ('np.clip(records["numbers"].astype(np.float64), -1.0, 1.0)', 'records["numbers"].astype(np.float64)'),
        SCALING + "test_one_record_moves_the_sum_by_no_more_than_the_sensitivity",
    ),
    _mutant(
        "scales-of-other-rows", "scales are fitted on rows outside of D, which are charged elsewhere",
        ("records = dataset.store.stored[dataset.rows[indices]]", "records = dataset.store.stored[indices]"),
        SCALING + "test_the_sum_is_over_the_records_of_d_alone",
    ),
    _mutant(
        "scales-exact", "scales are fitted on exact sums",
        ("releases.gaussian(preparation.name, source.sums(data.train.handed_out()))",
         "source.sums(data.train.handed_out())"),
        SCALING + "test_the_noise_has_the_law_of_the_charged_event",
    ),
    _mutant(
        "scales-not-in-the-plan", "training spends the whole budget, and the release before it comes on top",
        ("entries: list[Entry] = [*self.preparation_entries(), *first]", "entries: list[Entry] = [*first]"),
        SCALING + "test_training_has_what_the_release_leaves",
    ),
    _mutant(
        "scales-released-again", "a resumed run fits scales anew",
        ("found = world.share(archive.find(name) if world.main else None)", "found: Any = None"),
        SCALING + "test_it_is_released_once",
    ),
    _mutant(
        "scales-amplified", "a secret subset is said to amplify a release on all records",
        ("if subset.secret_subset and preparation is not None:", "if False:"),
        SCALING + "test_what_cannot_be_promised_is_refused",
    ),
]  # fmt: skip

_TUNING = [
    _mutant(
        "losers-scores-released", "the result of a tuning lists what every trial scored",
        ('facts = {**result.__dict__, "fingerprint": self.fingerprint}',
         'facts = {**result.__dict__, "fingerprint": self.fingerprint, "scores": list(scores.values())}'),
        TUNE + "test_only_the_best_trial_leaves_and_the_others_leave_no_trace",
    ),
    _mutant(
        "losers-kept", "the folder of the trials stays",
        ("        shutil.rmtree(self._private)\n        return result\n", "        return result\n"),
        TUNE + "test_only_the_best_trial_leaves_and_the_others_leave_no_trace",
    ),
    _mutant(
        "number-of-trials-shown", "the result says how many trials there were",
        ('trials=report["trials"],', "trials=str(len(trials)),"),
        TUNE + "test_nothing_that_is_released_depends_on_the_number_of_trials",
    ),
    _mutant(
        "trials-drawn-again", "a tuning that lost its trials draws others under the same charge",
        ("            if (self.out / _LEDGER).is_file():\n", "            if False:\n"),
        TUNE + "test_trials_that_are_paid_for_are_not_drawn_again",
    ),
    _mutant(
        "trials-in-the-noise-cache", "files of the user's cache of noise tell how many trials were drawn",
        ("with caches_in(make_owners_folder(self._private) / CACHE):",
         "if make_owners_folder(self._private):"),
        TUNE + "test_all_that_tells_of_trials_lies_in_the_private_folder_also_if_they_are_killed",
    ),
    _mutant(
        "trials-in-the-temporary-folder", "a trial that is killed leaves its log where all can see that it was there",
        ("home = Path(private) if Path(private).is_dir() else None", "home = None"),
        TUNE + "test_all_that_tells_of_trials_lies_in_the_private_folder_also_if_they_are_killed",
    ),
    _mutant(
        "exact-score", "trials are compared by their exact accuracy on V",
        ("return float(releases.gaussian(release.name, np.array(accuracy * size))) / size", "return float(accuracy)"),
        TUNE + "test_a_score_is_a_count_on_v_with_the_plan_s_noise",
    ),
    _mutant(
        "score-not-charged", "V does not pay for the scores",
        ("return (*_events(self.trial, dataset), *([score] if score else []))", "return _events(self.trial, dataset)"),
        TUNING + "test_the_score_is_charged_to_v_beside_what_selections_read",
    ),
    _mutant(
        "choosing-is-free", "a tuning is calibrated as if it were one run",
        ("return epsilon_bound([RepeatAndSelect(tuple(events), law.mean, law.shape)], draft.delta, "
         '"rdp").epsilon', 'return epsilon_bound(tuple(events), draft.delta, "rdp").epsilon'),
        TUNING + "test_the_whole_costs_its_budget_on_either_side_recomputed_by_separate_code",
    ),
    _mutant(
        "theorem-without-second-order", "being chosen among several is not paid for",
        ("renyi(self.trial, known) + self._second()[0] + _log_mean(self, order)",
         "renyi(self.trial, known) + _log_mean(self, order)"),
        REPEAT + "test_the_charge_recomputed_by_separate_code",
    ),
    _mutant(
        "tuning-at-orders-never-compared", "a tuning is charged at orders at which a trial may cost more than it pays",
        ("replace(self._event(side), orders=self._orders(side))", "self._event(side)"),
        TUNING + "test_the_charge_holds_at_every_order_that_anybody_may_ask_for",
    ),
    _mutant(
        "next-smaller-order", "at an order that was not compared a smaller one counts, whose divergence is less",
        ("min((a for a in self.orders if a >= order), default=math.inf)",
         "max((a for a in self.orders if a <= order), default=self.orders[0])"),
        REPEAT + "test_at_an_order_that_was_not_compared_the_next_larger_one_counts_and_beyond_them_nothing_is_known",
    ),
    _mutant(
        "fixed-number-of-trials", "as many trials as the mean says, every time",
        ("u, total = rng.random(), 0.0\n", "return round(self.mean)\n        u, total = rng.random(), 0.0\n"),
        REPEAT + "test_draws_follow_the_law",
    ),
    _mutant(
        "trials-cost-what-they-like", "settings with another schedule keep the budget of the config's own",
        ("        if _same_events(own, self.trial):\n", "        if True:\n"),
        TUNING + "test_a_trial_with_another_schedule_costs_no_more_at_the_theorem_s_orders",
    ),
]  # fmt: skip

_LOOPS = [
    _mutant(
        "loop-promises-without-condition", "a loop's statement does not begin with what the loop must not do",
        ('            report["statement"] = _ONLY_IF + report["statement"]\n', "            pass\n"),
        LOOP + "test_what_only_the_loop_s_author_can_know_is_said_first",
    ),
    _mutant(
        "loop-steps-twice", "a batch of a loop is good for many steps",
        ("        if self.taken:\n            raise", "        if False:\n            raise"),
        LOOP + "test_a_second_step_on_a_batch_is_refused",
    ),
    _mutant(
        "loop-exact-steps", "the optimizer that was handed in steps on exact gradients",
        ("        original.register_step_pre_hook(self._refuse_outside)\n", ""),
        LOOP + "test_the_optimizer_that_was_handed_in_refuses_to_step",
    ),
    _mutant(
        "loop-couples-records", "a loss that divides by the batch's weights passes",
        ("            raise MechanismError(_FIX)\n", "            pass\n"),
        LOOP + "test_a_loss_that_couples_records_is_refused_at_the_first_step",
    ),
    _mutant(
        "loop-writes-into-the-batch", "what a loop writes into its batch enters the step",
        ("yield drawn.x.clone(), drawn.y.clone(), drawn.weights.clone()", "yield drawn.x, drawn.y, drawn.weights"),
        LOOP + "test_a_step_is_the_engine_s_on_the_drawn_batch_with_the_plan_s_noise",
    ),
    _mutant(
        "loop-left-epochs-go-on", "batches of an epoch that was left are stepped on under another one's charge",
        ("                if self._epoch != epoch:\n", "                if False:\n"),
        LOOP + "test_an_epoch_that_was_left_gives_no_more_batches",
    ),
    _mutant(
        "loop-not-finite-shows", "the check of a loop's loss tells whether a record is finite",
        ("        expected, gradient = expected[finite], gradient[finite]\n", ""),
        LOOP + "test_a_record_that_is_not_finite_does_not_show_in_the_check",
    ),
]  # fmt: skip

FEATURES, FOLDER, PREDICT = "models/test_features.py::", "data/test_folder.py::", "models/test_predict.py::"

LEAVES = "models/test_leaves.py::"

_FROZEN = [
    _mutant(
        "leaves-centred-by-batch", "features of leaves are centred by the mean of the images in a batch",
        ("rows = unit_mean_square(white(family(numbers, self.kind)))",
         "rows = unit_mean_square((m := white(family(numbers, self.kind))) - m.mean(dim=0))"),
        LEAVES + "test_a_row_is_a_function_of_its_image",
    ),
    _mutant(
        "leaves-longer-than-said", "rows of leaves are longer than the head believes",
        ("(self.feature_shape[0] / len(_FAMILIES) / rows.shape[1]) ** 0.5", "(self.feature_shape[0] / rows.shape[1])"),
        LEAVES + "test_no_row_is_longer_than_the_head_believes",
    ),
    _mutant(
        "leaves-hide-bad-images", "an image that is not finite has finite features",
        ("torch.where(finite, torch.cat(parts, dim=1), torch.nan)",
         "torch.nan_to_num(torch.cat(parts, dim=1), nan=1.0)"),
        LEAVES + "test_a_row_is_a_function_of_its_image",
    ),
    _mutant(
        "backbone-in-train-mode", "BatchNorm of a frozen backbone uses and keeps the statistics of each batch",
        ("return module.eval().requires_grad_(False)", "return module.train().requires_grad_(False)"),
        FEATURES + "test_a_row_depends_on_its_record_alone", FEATURES + "test_a_backbone_stays_as_it_is",
    ),
    _mutant(
        "backbone-follows-the-model", "a backbone is a part of the model and follows it into training mode",
        ("    def function(records: Tensor) -> Tensor:\n        if isinstance(frozen, nn.Module):\n",
         "    def function(records: Tensor) -> Tensor:\n        if isinstance(frozen, nn.Module):\n"
         "            frozen.train(len(records) > _PROBES)\n"),
        FEATURES + "test_a_backbone_stays_as_it_is",
    ),
    _mutant(
        "features-scaled-by-batch", "features are scaled by the mean square of all records of a batch",
        ("size = rows.square().mean(dim=1, keepdim=True).sqrt()", "size = rows.square().mean().sqrt()"),
        FEATURES + "test_a_row_depends_on_its_record_alone",
    ),
    _mutant(
        "mixing-backbones-pass", "a backbone whose rows depend on each other is taken",
        ("    if not bool(((together - alone).norm(dim=1) <= allowed).all()):\n", "    if False:\n"),
        FEATURES + "test_what_mixes_records_is_refused",
    ),
    _mutant(
        "backbone-hides-not-finite", "a backbone makes finite features of a record that is not finite",
        ("rows = torch.where(finite, rows, torch.nan).to(records)", "rows = rows.to(records)"),
        FEATURES + "test_no_backbone_hides_that_a_record_is_not_finite",
    ),
    _mutant(
        "features-without-guard", "cached features of a record with an impossible label count",
        ("    return records.with_store(FeatureStore(", "    return RecordSet(records.store).with_store(FeatureStore("),
        FEATURES + "test_an_impossible_label_makes_features_void_whatever_is_cached",
    ),
    _mutant(
        "cache-for-everyone", "features of private records can be read by every user of the machine",
        ("os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)",
         "os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)"),
        FEATURES + "test_a_cache_is_for_its_owner_and_says_so",
    ),
    _mutant(
        "no-cache-leaves-a-file", "features stay on disk although the run was told to keep none",
        ('tempfile.TemporaryFile(prefix="cords_dp-") as file:  # it has no name',
         'tempfile.NamedTemporaryFile(prefix="cords_dp-", delete=False) as file:  # it has a name'),
        FEATURES + "test_without_a_cache_nothing_is_kept",
    ),
    _mutant(
        "decoder-speaks", "an image that cannot be decoded ends the run with the decoder's words",
        ("    except Exception:  # a decoder", "    except KeyError:  # a decoder"),
        FOLDER + "test_an_image_that_cannot_be_decoded_is_void_and_nothing_is_said",
    ),
    _mutant(
        "strange-folder-has-a-label", "images in a folder that is no class count as the first class",
        ("labels += [place.get(entry.name, NO_CLASS)]", "labels += [place.get(entry.name, 0)]"),
        FOLDER + "test_declared_classes_give_the_order_and_other_folders_have_no_label",
    ),
    _mutant(
        "model-json-counts", "model.json tells how many records have which label",
        ("        source=trainer.session.source_card(),\n",
         "        source={**(trainer.session.source_card() or {}),\n"
         '                "counts": [int((trainer.data.train.targets == c).sum()) for c in range(99)]},\n'),
        PREDICT + "test_a_model_json_holds_public_facts_only",
    ),
    _mutant(
        "report-reads-any-state", "the report shows what a mechanism of someone else's kept in its state",
        ("    if type(mechanism) is not Align:", "    if not isinstance(mechanism, Align):"),
        "report/test_page.py::test_nothing_is_told_about_draws_of_other_mechanisms",
    ),
]  # fmt: skip

ESTIMATOR, REPEATS = "estimators/test_estimator.py::", "estimators/test_repeats.py::"

_ESTIMATORS = [
    _mutant(
        "bounds-of-the-batch", "rows are shortened by the longest of the batch, so records scale each other",
        ("x / x.norm(dim=1, keepdim=True).clamp(min=self.norm)",
         "x / x.norm(dim=1, keepdim=True).max().clamp(min=self.norm)"),
        ESTIMATOR + "test_no_row_is_longer_than_1_by_its_bounds",
    ),
    _mutant(
        "bounds-without-clipping", "values outside of their public range stay where they are",
        ("(2 * (x.clamp(low, high) - low)", "(2 * (x - low)"),
        ESTIMATOR + "test_no_row_is_longer_than_1_by_its_bounds",
    ),
    _mutant(
        "v-among-d", "the rows that are kept as V are trained on, too",
        ("train, validation = records.at(order[held_out:]), records.at(order[:held_out])",
         "train, validation = records, records.at(order[:held_out])"),
        ESTIMATOR + "test_a_strategy_that_selects_splits_v_off_and_others_train_on_all",
    ),
    _mutant(
        "estimator-keeps-its-session", "a fitted estimator holds the records that it was fitted on",
        ("        self._loaded = released_model(card, session.released)\n",
         "        self._loaded = released_model(card, session.released)\n        self._data = session.data\n"),
        ESTIMATOR + "test_a_pickle_holds_no_record",
    ),
    _mutant(
        "no-budget-by-omission", "a config that leaves epsilon out trains without privacy",
        ('if not isinstance(section, Mapping) or "epsilon" not in section or section["epsilon"] is not None:',
         'if not isinstance(section, Mapping) or section.get("epsilon") is not None:'),
        "config/test_settings.py::test_a_budget_of_none_is_no_privacy_and_a_missing_one_is_refused",
    ),
    _mutant(
        "trials-tested-on-records", "the test set of a tuning's trials, whose metrics are exact, holds records",
        ("x_test=np.zeros((len(places), *X.shape[1:]), X.dtype)", "x_test=X[: len(places)]"),
        "estimators/test_tuning.py::test_what_trials_are_tested_on_is_made_up",
    ),
    _mutant(
        "fits-are-forgotten", "a second fit on the same records counts as the first",
        ("        epsilons[shared] += earlier.epsilon\n", ""),
        REPEATS + "test_a_first_fit_says_nothing_and_a_second_what_both_add_up_to",
    ),
    _mutant(
        "owners-by-rows-alone", "what other rows of the same people cost is not added up",
        ("    if owners is None:\n        return row_digests(records)\n", "    return row_digests(records)\n"),
        REPEATS + "test_other_rows_of_the_same_owners_count_as_theirs",
    ),
    _mutant(
        "value-quoted", "one value that is no number ends a fit, with an error that quotes it",
        ("validate_data(self, kinds.numbers_of(X), reset", "validate_data(self, X, reset"),
        ESTIMATOR + "test_a_value_that_is_no_number_decides_nothing_and_is_not_quoted",
    ),
    _mutant(
        "an-owner-s-cost-said-of-a-record", "a report says that a record pays what is promised to an owner",
        ('return "an owner" if str(report.get("unit")).startswith("one owner") else "a record"', 'return "a record"'),
        "report/test_comparison.py::test_records_and_owners_are_not_added_up",
    ),
]  # fmt: skip

DIGEST, PROVENANCE = "data/test_digests.py::", "training/test_provenance.py::"
_STATEMENT = [
    _mutant(
        "plain-digest", "the statement's digest of private files has no key: a guess of their content can be confirmed",
        ("hmac.new(key, json.dumps([salt, contents]).encode()", 'hmac.new(b"", json.dumps([salt, contents]).encode()'),
        DIGEST + "test_without_the_key_a_guess_of_the_content_cannot_be_confirmed",
    ),
    _mutant(
        "digest-without-salt", "two statements tell whether the file behind them has changed",
        ("hmac.new(key, json.dumps([salt, contents]).encode()", 'hmac.new(key, json.dumps(["", contents]).encode()'),
        PROVENANCE + "test_two_statements_do_not_tell_that_they_are_about_one_file",
    ),
    _mutant(
        "open-key", "the key of an owner's digests can be read by everybody",
        ("secrets.token_bytes(_SIZE), mode=0o600)", "secrets.token_bytes(_SIZE), mode=0o644)"),
        DIGEST + "test_the_key_is_drawn_once_and_is_the_owner_s_alone",
    ),
    _mutant(
        "replace-one-at-zero-out-price", "the statement gives replace-one the ε of zero-out",
        ("ε = {2 * cost.epsilon:.4f}", "ε = {cost.epsilon:.4f}"),
        "planning/test_guarantee.py::test_replacing_a_record_is_two_steps_of_zero_out",
    ),
]  # fmt: skip

VERIFY = "test_verify.py::"
_VERIFY = [
    _mutant(
        "verify-one-direction", "verify leaves out the direction in which the record is present",
        ("for way in (PRESENT, ABSENT))", "for way in (ABSENT,))"),
        VERIFY + "test_epsilon_is_the_package_s_own[1.0-rare]",
    ),
    _mutant(
        "verify-best-branch", "verify takes the smallest profile of the branches",
        ("lambda e: np.max([b.get_delta_for_epsilon(e)", "lambda e: np.min([b.get_delta_for_epsilon(e)"),
        VERIFY + "test_a_choice_between_branches_costs_the_worst_at_every_epsilon",
    ),
    _mutant(
        "verify-any-end", "verify does not compare the journal's end with the statement",
        ('* (self.head != self.ledger["head"])', "* 0"),
        VERIFY + "test_a_missing_entry_is_named_where_the_chain_was_made_to_fit",
    ),
    _mutant(
        "verify-any-model", "verify does not compare digests of model and config",
        ('_digest(self.folder / about["file"]) == about["sha256"]', "True"),
        VERIFY + "test_a_swapped_model_is_named",
    ),
    _mutant(
        "verify-any-lock", "verify takes every lock for an empty one",
        ('if f.is_file() and (f.suffix != ".lock" or f.stat().st_size))', 'if f.is_file() and f.suffix != ".lock")'),
        VERIFY + "test_only_an_empty_lock_is_no_file_of_the_run",
    ),
    _mutant(
        "verify-any-schedule", "verify does not derive the events of steps from the plan",
        ("_counts(self.planned()) - listed", "_counts([])"),
        VERIFY + "test_a_cheaper_run_that_was_forged_alike_but_for_its_plan_is_named[more_noise-"
        "within the plan-fewer than planned]",
    ),
    _mutant(
        "verify-any-facts", "verify does not compare unit, sizes and inclusion with the plan",
        ("in its plan\": x == y for", "in its plan\": True for"),
        VERIFY + "test_another_unit_than_the_plan_s_is_named[units-1000000]",
    ),
    _mutant(
        "verify-one-text", "verify reads the statement of privacy.json alone",
        ('makes another statement than privacy.json"] = report["statement"] in text',
         'makes another statement than privacy.json"] = True'),
        VERIFY + "test_an_epsilon_rounded_down_in_a_text_is_named[README.md]",
    ),
    _mutant(
        "verify-nan", "for verify what is no number is large enough",
        ("if not x >= y * (1 - SLACK)", "if x < y * (1 - SLACK)"),
        VERIFY + "test_what_is_no_number_is_named[epsilon]",
    ),
    _mutant(
        "verify-negative", "verify adds up negative uses",
        ("    if odd := re.search(", "    if odd := \"\" and re.search("),
        VERIFY + "test_an_event_with_a_number_that_no_event_has_is_named[-5-charges]",
    ),
    _mutant(
        "verify-account-forgets", "verify believes an account's last line, whatever the lines before it said",
        ('if _counts(last.get("charged", [])) - _counts(charged) or kept', "if kept"),
        VERIFY + "test_an_account_that_forgets_is_named[True]",
    ),
    _mutant(
        "mu-up-to-a-thousandth", "μ of Gaussian DP leaves out a thousandth of δ",
        ("deltas[start:] - SLACK", "deltas[start:] - 1e-3"),
        "accounting/test_trade_off.py::test_the_gaussian_mechanism_has_its_own_mu_and_no_regret[1.0-1]",
    ),
]  # fmt: skip

OWNED, OWNERS, AUDITED_OWNERS = "data/test_owners.py::", "training/test_owners.py::", "auditing/test_owners.py::"
_OWNERS = [
    _mutant(
        "owners-without-a-cap", "a step uses all records of an owner, however many",
        ("few, many = drawn[counts <= self._cap], drawn[counts > self._cap]", "few, many = drawn, drawn[:0]"),
        OWNERS + "test_an_owner_is_drawn_at_the_rate_with_at_most_the_cap_and_a_mass_of_one",
    ),
    _mutant(
        "records-of-owners-clipped", "each record of an owner is clipped by itself: its part of a sum is up to cap · C",
        ("_owner_parts(a, r, piece.weights, Rows.of(piece.owners))",
         "_owner_parts(a, r, piece.weights, Rows.of(torch.arange(len(r))))"),
        OWNERS + "test_without_one_owner_the_sum_moves_by_no_more_than_the_clip_norm",
    ),
    _mutant(
        "owners-cut-in-pieces", "an owner whose records are in two pieces of a batch is clipped twice",
        ("        taken = max(bisect_right(ends, start + piece), taken + 1)\n",
         "        ends = sorted({*ends, min(start + piece, len(owners))})\n"
         "        taken = max(bisect_right(ends, start + piece), taken + 1)\n"),
        OWNERS + "test_no_piece_cuts_an_owner_in_two",
    ),
    _mutant(
        "owners-split-over-sets", "records are dealt to D, V and the test set one by one, whoever owns them",
        ("    seen = numbered.codes(owners[0])", "    seen = np.arange(len(numbered.codes(owners[0])))"),
        OWNED + "test_sets_are_made_of_whole_owners",
    ),
    _mutant(
        "owners-in-d-and-v", "an owner who is in D's file keeps the records of V's file",
        ("rows = np.flatnonzero(~np.isin(codes, elsewhere))", "rows = np.arange(len(codes))"),
        OWNED + "test_of_a_file_of_its_own_owners_who_are_elsewhere_lose_their_records_and_still_count",
    ),
    _mutant(
        "owners-count-by-records", "an owner of k records has the mass k in a table whose sensitivity is 1",
        ("return 1.0 / np.bincount(self.codes, minlength=1)[self.codes]", "return np.ones(len(self.codes))"),
        OWNED + "test_the_records_of_an_owner_have_the_mass_of_one_record",
    ),
    _mutant(
        "table-without-masses", "align counts every record of an owner as one",
        ("np.bincount(cells[some], weights=self.masses[some], minlength", "np.bincount(cells[some], minlength"),
        OWNERS + "test_an_owner_moves_a_table_by_no_more_than_a_record_did",
    ),
    _mutant(
        "label-counts-without-masses", "the rivals count every record of an owner as one label",
        ("np.bincount(cells[some], weights=self.masses[some], minlength", "np.bincount(cells[some], minlength"),
        AUDITED_OWNERS + "test_without_one_owner_a_selection_differs_by_its_sensitivity_and_in_nothing_else"
        "[class_weights]",
    ),
    _mutant(
        "scales-summed-over-owners", "an owner of k records moves the sums of private scaling k times as far",
        ("            each *= dataset.owners.masses[some][:, None, None]", "            pass"),
        "data/test_table_scaling.py::test_an_owner_moves_the_sum_by_no_more_than_a_record_did",
    ),
    _mutant(
        "owners-over-processes", "an owner's records lie in several processes, each with a coin and a clip of its own",
        ("start, stop = share.bounds(owners.count)\n        places = _places(owners.codes, start, stop)",
         "start, stop = share.bounds(len(self))\n        places = np.arange(start, stop)"),
        "distributed/test_owners.py::test_an_owner_is_in_one_process_and_has_one_coin_in_every_step",
    ),
    _mutant(
        "owners-counted-as-records", "δ and q are those of the number of records, which is larger than that of owners",
        ("return self.total if self.owners is None else self.owners.count", "return self.total"),
        OWNERS + "test_a_run_counts_owners_and_names_nobody",
    ),
    _mutant(
        "mixed-account", "an account adds up the ε of people and the ε of records",
        ("            if holdings.units() - {unit}:\n", "            if run in ():\n"),
        OWNERS + "test_an_account_of_people_and_one_of_records_do_not_add_up",
    ),
]  # fmt: skip

TESTED = "training/test_private_test.py::"
_PRIVATE_TEST = [
    _mutant(
        "test-release-uncharged", "the counts of a private test set are released and nobody pays",
        ("charge=charging(ledger),\n            generators=generators,",
         "charge=lambda *_: None,\n            generators=generators,"),
        TESTED + "test_it_is_charged_on_disk_before_it_is_drawn",
    ),
    _mutant(
        "test-release-again", "a run that is resumed releases of its test set a second time",
        ("    if found is None:\n        releases = Releases(\n            declared,",
         "    if True:\n        releases = Releases(\n            declared,"),
        TESTED + "test_a_resumed_run_has_the_release_that_it_made",
    ),
    _mutant(
        "exact-test-metrics", "exact metrics of a private test set are logged in every epoch",
        ('private += ["tst_"] if test != PUBLIC else []', "private += []"),
        TESTED + "test_epochs_and_checkpoints_know_nothing_of_it",
    ),
    _mutant(
        "exact-test-classes", "about.json has the exact accuracies of the classes of a private test set",
        ('    if trainer.run.shows_test:\n        about["classes"]', '    if True:\n        about["classes"]'),
        TESTED + "test_no_file_and_no_line_has_an_exact_metric",
    ),
    _mutant(
        "test-size-by-labels", "how many records a private test set has depends on their labels",
        ('if section.get("test") in (None, PUBLIC) else records', "if section else records"),
        TESTED + "test_test_records_without_a_label_count_and_contribute_nothing",
    ),
    _mutant(
        "test-owners-by-records", "an owner of k test records counts k times in a release of sensitivity 1",
        ("masses = None if records.owners is None else records.owners.masses\n    codes, names",
         "masses = None\n    codes, names"),
        TESTED + "test_owners_of_test_records_count_once",
    ),
    _mutant(
        "test-amplified", "a secret subset of D lowers what the test set pays",
        ("inclusion = 1.0 if phase in (VALIDATION, EVALUATION) else self.inclusion", "inclusion = self.inclusion"),
        TESTED + "test_a_secret_subset_amplifies_nothing_of_the_test_set",
    ),
    _mutant(
        "test-left-out-of-the-total", "the ε of a run is that of D and V, although the test set pays as well",
        ("phases.get(VALIDATION), phases.get(EVALUATION))", "phases.get(VALIDATION))"),
        TESTED + "test_the_plan_is_the_largest_of_the_three_sets",
    ),
    _mutant(
        "evaluation-uncharged", "an estimator's evaluation is released and nobody pays",
        ("        charge=charging(ledger),\n        generators={TEST_DATA: secure_generator()},",
         "        charge=lambda *_: None,\n        generators={TEST_DATA: secure_generator()},"),
        "estimators/test_evaluation.py::test_nothing_is_drawn_before_it_is_charged",
    ),
    _mutant(
        "table-without-unlabelled", "how many test records a table has depends on their labels",
        ("tested_records(tested, section, classes)", "tested_records(tested, {}, classes)"),
        TESTED + "test_a_table_keeps_its_test_records_without_a_label",
    ),
    _mutant(
        "test-delta", "δ is as large as one over the number of test records",
        ("largest = max(shape.n, read, shape.n_test)", "largest = max(shape.n, read)"),
        TESTED + "test_delta_stays_below_one_over_the_test_records",
    ),
]  # fmt: skip

TEMPERATURE = "training/test_temperature.py::"
_TEMPERATURE = [
    _mutant(
        "temperature-without-noise", "what a temperature is fitted by is released exactly, and nobody pays",
        ("event = None if self.sigma_temperature is None else gaussian(self.sigma_temperature)", "event = None"),
        TEMPERATURE + "test_the_release_is_the_sum_on_v_with_noise_of_the_charged_event",
    ),
    _mutant(
        "temperature-of-the-exact-sum", "noise is drawn and paid for, and the temperature follows from the exact sum",
        ('chosen_temperature(found["released"].numpy(), ', "chosen_temperature(steps_on(records), "),
        TEMPERATURE + "test_the_temperature_follows_from_what_was_released",
    ),
    _mutant(
        "temperature-beyond-the-budget", "the selections on V spend all of its ε, and a temperature comes on top",
        ("once += [] if last is None else [gaussian(last)]", "once += []"),
        TEMPERATURE + "test_v_pays_within_its_own_budget_and_d_does_not_notice",
    ),
    _mutant(
        "temperature-steps-unbounded", "one record of which the model is sure and wrong moves the sum by more than 1",
        ("(1.0 if masses is None else masses[known, None]) / np.maximum(lengths, _LONGEST)",
         "(1.0 if masses is None else masses[known, None]) / _LONGEST"),
        "evaluation/test_temperature.py::test_no_record_is_longer_than_one",
    ),
    _mutant(
        "temperature-owners-by-records", "an owner of k records of V counts k times in a sum of sensitivity 1",
        ("seen.logits.double().cpu().numpy(), records.masses)", "seen.logits.double().cpu().numpy())"),
        TEMPERATURE + "test_an_owner_of_several_records_of_v_counts_once",
    ),
    _mutant(
        "temperature-unverified", "a statement that leaves the temperature's event out is verified",
        ('"V sigma_temperature", ', ""),
        TEMPERATURE + "test_a_plan_that_leaves_its_event_out_is_not_verified",
    ),
]  # fmt: skip

HEAD_START = "training/test_head_start.py::"
_HEAD_START = [
    _mutant(
        "head-start-beyond-the-budget", "the selections on V spend all of its ε, and first steps come on top",
        ("once = [] if first is None else [gaussian(first, plan.head_start)]", "once = []"),
        HEAD_START + "test_v_pays_within_its_own_budget_and_d_does_not_notice",
    ),
    _mutant(
        "head-start-sensitivity", "noise of the first steps is for sums that a record moves by less than the clip norm",
        ("return (Release(HEAD_START, VALIDATION_DATA, event, clip, words),)",
         "return (Release(HEAD_START, VALIDATION_DATA, event, clip / 2, words),)"),
        HEAD_START + "test_the_steps_are_gradient_steps_on_v_with_noise_of_the_charged_event",
    ),
    _mutant(
        "head-start-unclipped", "one record of V moves a sum by more than the clip norm",
        ("torch.cat([total.flatten() for total in sums])", "2 * torch.cat([total.flatten() for total in sums])"),
        HEAD_START + "test_removing_a_record_of_v_moves_a_sum_by_the_clip_norm_at_most",
    ),
    _mutant(
        "head-start-unverified", "a statement that leaves the event of the first steps out is verified",
        (', "V sigma_head_start")', ")"),
        HEAD_START + "test_a_plan_that_leaves_its_event_out_is_not_verified",
    ),
]  # fmt: skip

IN_STEPS = "training/test_validation_in_steps.py::"
_IN_STEPS = [
    _mutant(
        "v-in-steps-uncharged", "V's records are in every step, and D alone is charged",
        ("for entry in plan.step_entries(epoch):", "for entry in plan.step_entries(epoch)[:1]:"),
        IN_STEPS + "test_both_sets_are_charged_on_disk_before_a_step",
    ),
    _mutant(
        "v-in-steps-beyond-the-budget", "all else spends V's whole ε, and its part in the steps is extra",
        ("return [*_selections_on_validation(plan, sigma), *once, *_steps_on_validation(plan)]",
         "return [*_selections_on_validation(plan, sigma), *once]"),
        IN_STEPS + "test_v_pays_for_its_part_and_d_does_not_notice",
    ),
    _mutant(
        "v-in-steps-at-the-rate-of-d", "V's records are drawn as often as D's and pay for being drawn less often",
        ("self._drawn_of_v(plan.paces[VALIDATION_DATA] * rate, ", "self._drawn_of_v(rate, "),
        IN_STEPS + "test_each_record_of_v_has_its_own_coin_at_the_charged_rate[match-0.9]",
    ),
    _mutant(
        "v-in-steps-at-the-fastest-rate", "with the least noise of all branches V is drawn at the rate of the noisiest",
        ("rate = min(b.rate for b in plan.branches if b.sigma == sigma)", "rate = max(b.rate for b in plan.branches)"),
        IN_STEPS + "test_each_record_of_v_has_its_own_coin_at_the_charged_rate[group_rates-0.2]",
    ),
    _mutant(
        "v-in-steps-charged-at-half", "the event of a step on V has half of the rate at which V is drawn",
        ("PoissonGaussian(b.sigma, pace * b.rate, steps)", "PoissonGaussian(b.sigma, pace**2 * b.rate, steps)"),
        IN_STEPS + "test_every_step_on_d_is_one_on_v_with_the_same_noise_at_the_pace",
    ),
    _mutant(
        "v-in-steps-as-owners-of-d", "an owner of V and one of D with the same number are clipped as one",
        ("owners[0] + self.data.train.owners.count)", "owners[0])"),
        IN_STEPS + "test_owners_of_v_are_others_than_those_of_d",
    ),
    _mutant(
        "v-in-steps-unverified", "a statement that leaves V's part in the steps out is verified",
        ('("V", plan.get("pace", 0.0))', '("V", 0.0)'),
        IN_STEPS + "test_a_plan_that_leaves_its_events_out_is_not_verified",
    ),
    _mutant(
        "a-person-in-both-sets", "a person with records in D and in V has as many in a step as the larger set has",
        ("parts[1] += [(event, split[0] + split[1]) for", "parts[1] += [(event, max(split[0], split[1])) for"),
        IN_STEPS + "test_a_person_in_both_sets_is_in_one_step_with_all_records",
    ),
    _mutant(
        "plugin-charges-d-by-noise-on-v", "a mechanism whose charge to D follows the noise on V exceeds D's budget",
        ("if training_events(whole) != training_events(plan):", "if not training_events(whole):"),
        IN_STEPS + "test_a_mechanism_that_charges_d_by_the_noise_on_v_is_refused",
    ),
    _mutant(
        "tuning-scored-on-what-was-trained-on", "trials train on the records that they are scored by",
        ("    return with_settings(config, {**apart, **unseen})", "    return with_settings(config, apart)"),
        IN_STEPS + "test_trials_that_are_scored_on_v_do_not_train_on_it",
    ),
]  # fmt: skip

MUTANTS: tuple[Mutant, ...] = (
    *_NOISE, *_CLIPPING, *_HALF_ROWS, *_BOOKKEEPING, *_SAMPLING, *_SELECTION, *_ACCOUNTING, *_LEAKS, *_TABLES, *_FROZEN,
    *_TUNING, *_LOOPS, *_ACCOUNT, *_REGISTERED, *_HANDED_OVER,
    *_ESTIMATORS, *_STATEMENT, *_VERIFY, *_OWNERS, *_PRIVATE_TEST, *_TEMPERATURE, *_HEAD_START,
    *_IN_STEPS,
)  # fmt: skip
assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS), "two mutants have one name"
